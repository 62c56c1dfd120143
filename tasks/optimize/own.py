"""A pass of the user's own: any function from a model to a model."""

from pathlib import Path
from typing import Literal

import onnx
from pydantic import Field

from tasks.errors import StageError
from tasks.frozen import Frozen
from tasks.model_file import write_model
from tasks.sources.torch.code import Code, FunctionName, files_of


class OwnPass(Frozen):
    """A Python function that takes an `onnx.ModelProto` and returns one; it may change the one that it is given."""

    kind: Literal["python"] = "python"
    function: FunctionName = Field(description="module:function, for example passes:fuse_gelu")
    folder: Path = Field(Path(), description="where the module is; the working directory by default")

    @property
    def name(self) -> str:
        """The candidate's name."""
        return self.function.partition(":")[2]

    def files(self) -> tuple[Path, ...]:
        """Return the user's files that decide what the pass does."""
        return files_of(self.folder, self.function)

    def apply(self, source: Path, target: Path) -> None:
        """Write what the function returns.

        Raises:
            StageError: when it cannot be imported, or returns something else.
        """
        done = Code.read(self.folder, self.function).function()(onnx.load(source))
        if not isinstance(done, onnx.ModelProto):
            raise StageError(f"{self.function} returns {type(done).__name__}; return an onnx.ModelProto")
        write_model(done, target)
