"""OpenVINO with NNCF's INT8, as their guides show it; runs in an environment of its own, for peers.py.

    python nncf_ptq.py MODEL.onnx IMAGES.npz OUT.xml

IMAGES has one array, of the model's first input; each image is one calibration sample.
"""

import sys

import nncf
import numpy as np
import openvino as ov


def main(path: str, images: str, out: str) -> None:
    """Convert, quantize, save."""
    with np.load(images) as file:
        samples = [image[None] for image in next(iter(file.values()))]
    quantized = nncf.quantize(ov.convert_model(path), nncf.Dataset(samples), subset_size=len(samples))
    ov.save_model(quantized, out, compress_to_fp16=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
