"""Configurations that are inferred from a model file, and models for it."""

from pathlib import Path
from typing import Any

import onnx
import onnx_text

from configs.brought_model import infer_config
from configs.loader import validated


def saved(path: Path, proto: onnx.ModelProto) -> Path:
    onnx.save(proto, path)
    return path


def classifier(path: Path, shape: str = "n,3,32,32") -> Path:
    text = f"m (float[{shape}] image) => (float[n,k] scores) {{ g = GlobalAveragePool(image) scores = Flatten(g) }}"
    return saved(path, onnx_text.model(text))


def inferred(model: Path, data: Path | None = None, labels: Path | None = None, **shapes: tuple[int, ...]) -> Any:
    """Return what was inferred, and the configuration that it makes."""
    found = infer_config(model, data, labels, shapes)
    return found, validated(model, found.values)
