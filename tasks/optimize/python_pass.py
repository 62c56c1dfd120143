"""A user-defined pass: a Python function from model to model."""

from pathlib import Path
from typing import Literal

import onnx
from pydantic import Field

from gauntlet.core.errors import StageError
from gauntlet.core.frozen import Frozen
from gauntlet.core.user_code import FunctionName, UserCode, source_files
from gauntlet.onnx_model.model_file import write_model


class PythonPass(Frozen):
    """A Python function that takes an `onnx.ModelProto` and returns one; it may modify its argument."""

    kind: Literal["python"] = "python"
    function: FunctionName = Field(description="module:function, for example passes:fuse_gelu")
    code_folder: Path = Field(Path(), description="folder of the module; by default the working directory")

    @property
    def name(self) -> str:
        """The candidate's name."""
        return self.function.partition(":")[2]

    def files(self) -> tuple[Path, ...]:
        """Return the user's files that implement the pass."""
        return source_files(self.code_folder, self.function)

    def apply(self, model: Path, destination: Path) -> None:
        """Write the function's result. Raises StageError when there is no such function or result."""
        result = UserCode.read(self.code_folder, self.function).function()(onnx.load(model))
        if not isinstance(result, onnx.ModelProto):
            raise StageError(f"{self.function} returns {type(result).__name__}; return an onnx.ModelProto")
        write_model(result, destination)
