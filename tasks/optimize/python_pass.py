"""A user-defined pass: a Python function from model to model."""

from pathlib import Path
from typing import Literal

import onnx

from gauntlet.core.errors import StageError
from gauntlet.core.user_code import UserFunction
from gauntlet.onnx_model.model_file import write_model
from tasks.optimize.base import Pass


class PythonPass(UserFunction, Pass):
    """A Python function that takes an `onnx.ModelProto` and returns one; it may modify its argument."""

    kind: Literal["python"] = "python"

    @property
    def name(self) -> str:
        """The candidate's name."""
        return self.function.partition(":")[2]

    def apply(self, model: Path, destination: Path) -> None:
        """Write the function's result. Raises StageError when there is no such function or result."""
        result = self.load()(onnx.load(model))
        if not isinstance(result, onnx.ModelProto):
            raise StageError(f"{self.function} returns {type(result).__name__}; return an onnx.ModelProto")
        write_model(result, destination)
