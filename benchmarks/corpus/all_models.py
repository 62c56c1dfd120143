"""All models of the corpus: name -> function that writes the file."""

from functools import partial
from pathlib import Path

import onnx
from exported_models import EXPORTED, Make
from written_models import WRITTEN


def _written(name: str, path: Path) -> None:
    onnx.save(WRITTEN[name](), path)


MODELS: dict[str, Make] = {**{name: partial(_written, name) for name in WRITTEN}, **EXPORTED}
ARGUMENTS = {
    "initial-state": ("--shape", "x=6x1x20"),
    "torchscript-scripted-control-flow": ("--shape", "frames=6x1x24"),
}
"""Name -> arguments of `gauntlet run` that the model needs."""
