"""Quantize an ONNX model by another tool, as its guide shows it, in that tool's environment, for exactness.

    python peer_quantizers.py TOOL MODEL.onnx INPUTS.npz OUT

INPUTS has one array, of the model's first input; each of its rows is one calibration sample.
"""

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx

SAMPLES = list[dict[str, np.ndarray]]


def nncf(model: str, samples: SAMPLES, out: str, **options: Any) -> None:
    """Save NNCF's INT8 file, for ONNX Runtime or, with another suffix, for OpenVINO."""
    import nncf
    import openvino

    count = {"subset_size": len(samples), **options}
    if out.endswith(".onnx"):
        quantized = nncf.quantize(onnx.load(model), nncf.Dataset(samples), **count)
        onnx.save(quantized, out)
    else:
        arrays = [next(iter(sample.values())) for sample in samples]
        quantized = nncf.quantize(openvino.convert_model(model), nncf.Dataset(arrays), **count)
        openvino.save_model(quantized, out, compress_to_fp16=False)


def nncf_full(model: str, samples: SAMPLES, out: str) -> None:
    """Correct every bias by what reaches it through the layers before, too."""
    nncf(model, samples, out, fast_bias_correction=False)


def quark(model: str, samples: SAMPLES, out: str) -> None:
    """Save Quark's INT8 file for processors."""
    from quark.onnx import ModelQuantizer
    from quark.onnx.quantization.config import Config, get_default_config

    config = get_default_config("U8S8_AAWS")
    config.log_severity_level = 3
    ModelQuantizer(Config(global_quant_config=config)).quantize_model(model, out, Reader(samples))


def aimet(model: str, samples: SAMPLES, out: str) -> None:
    """Save AIMET's INT8 file with its encodings as nodes."""
    from aimet_onnx import QuantizationSimModel

    sim = QuantizationSimModel(onnx.load(model), param_type="int8", activation_type="int8")
    sim.compute_encodings(samples)
    onnx.save(sim.to_onnx_qdq(), out)


class Reader:
    """Gives one sample after the other, as ONNX Runtime's readers do."""

    def __init__(self, samples: SAMPLES) -> None:
        self._rest: Iterator[dict[str, np.ndarray]] = iter(samples)

    def get_next(self) -> dict[str, np.ndarray] | None:
        """Return the next sample, or None."""
        return next(self._rest, None)


TOOLS = {"nncf": nncf, "nncf-full": nncf_full, "quark": quark, "aimet": aimet}


def main(tool: str, model: str, inputs: str, out: str) -> None:
    """Read the samples, quantize, save."""
    with np.load(inputs) as file:
        name, values = next(iter(file.items()))
    TOOLS[tool](model, [{name: value[None]} for value in values], out)


if __name__ == "__main__":
    main(*sys.argv[1:])
