"""Olive's static quantization with its defaults; runs in an environment of its own, for peers.py.

    python olive_static.py MODEL.onnx IMAGES.npz OUT.onnx

IMAGES has one array, of the model's first input; each image is one calibration sample.
"""

import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
from olive.data.registry import Registry
from olive.workflows import run


class Images:
    """The samples as Olive wants them: an input's feed and a label each."""

    def __init__(self, path: str) -> None:
        with np.load(path) as file:
            self.name, self.images = next(iter(file.items()))

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, place: int) -> tuple[dict[str, np.ndarray], int]:
        return {self.name: self.images[place]}, 0


@Registry.register_dataset()
def images(data_dir: str, **_: object) -> Images:
    """Return the calibration images in a file."""
    return Images(data_dir)


def main(path: str, data: str, out: str) -> None:
    """Let Olive's two usual passes work, and take its file."""
    with tempfile.TemporaryDirectory() as folder:
        run(
            {
                "input_model": {"type": "ONNXModel", "model_path": path},
                "data_configs": [{"name": "calibration", "load_dataset_config": {"type": "images", "data_dir": data}}],
                "passes": {
                    "peephole": {"type": "OnnxPeepholeOptimizer"},
                    "quantization": {"type": "OnnxStaticQuantization", "data_config": "calibration"},
                },
                "cache_dir": f"{folder}/cache",
                "output_dir": f"{folder}/out",
                "log_severity_level": 2,
            }
        )
        made = next(Path(folder, "out").rglob("*.onnx"))
        shutil.copy(made, out)


if __name__ == "__main__":
    main(*sys.argv[1:])
