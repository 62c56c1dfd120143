"""The target: what a configuration or the command line says. It imports nothing heavy."""

from typing import ClassVar, Literal

from gauntlet.targets.base import BaseTarget


class OnnxReference(BaseTarget):
    """ONNX's reference evaluator, in NumPy: slow, and right by definition."""

    kind: Literal["onnx-reference"] = "onnx-reference"
    engine: ClassVar[str] = "onnx_reference.engine"
