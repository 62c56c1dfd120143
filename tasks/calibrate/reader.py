"""A calibration reader of the user's own: a Python function that yields the inputs to calibrate with."""

from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from gauntlet.core.errors import StageError
from gauntlet.core.frozen import Frozen
from gauntlet.core.signature import Signature
from gauntlet.core.user_code import FunctionName, UserCode, code_files
from gauntlet.datasets.splits import ArraySplit


class CalibrationReader(Frozen):
    """A function without arguments that returns an iterable of dictionaries: arrays (n, ...) by the model's inputs.

    A class that is a `CalibrationDataReader` of ONNX Runtime is such a function, too.
    """

    function: FunctionName = Field(description="module:function, for example mydata:calibration_batches")
    code_folder: Path = Field(Path(), description="folder of the module; by default the working directory")

    def files(self) -> tuple[Path, ...]:
        """Return the user's files that implement the reader."""
        return code_files(self.code_folder, self.function)

    def read(self, signature: Signature, images: int) -> ArraySplit:
        """Return the first samples, at most `images`, of what the function yields.

        Raises:
            StageError: when the function fails, or what it yields does not fit the model's inputs.
        """
        function = UserCode.read(self.code_folder, self.function).function()
        names = [spec.name for spec in signature.inputs]
        parts: list[dict[str, np.ndarray[Any, Any]]] = []
        try:
            for batch in islice(_batches(function()), images):
                parts.append(self._checked(batch, names))
                if sum(len(part[names[0]]) for part in parts) >= images:
                    break
        except StageError:
            raise
        except Exception as error:  # the user's code may raise anything
            raise StageError(f"calibrate.reader: {self.function} fails: {type(error).__name__}: {error}") from error
        if not parts:
            raise StageError(f"calibrate.reader: {self.function} yields nothing; yield arrays of {', '.join(names)}")
        shapes = {name: {part[name].shape[1:] for part in parts} for name in names}
        if uneven := next((name for name, found in shapes.items() if len(found) > 1), None):
            found = ", ".join(map(str, sorted(shapes[uneven])))
            raise StageError(f"calibrate.reader: {self.function} yields {uneven!r} in different sizes ({found})")
        return ArraySplit({name: np.concatenate([part[name] for part in parts])[:images] for name in names})

    def _checked(self, batch: object, names: list[str]) -> dict[str, np.ndarray[Any, Any]]:
        """Return the arrays of one batch by the names of the inputs."""
        wanted = f"a dictionary with arrays of shape (n, ...) for {', '.join(names)}"
        if not isinstance(batch, dict) or set(batch) != set(names):
            found = f"one of {sorted(map(str, batch))}" if isinstance(batch, dict) else type(batch).__name__
            raise StageError(f"calibrate.reader: {self.function} yields {found}; expected {wanted}")
        arrays = {name: np.asarray(batch[name]) for name in names}
        lengths = {array.shape[:1] for array in arrays.values()}
        if len(lengths) != 1 or lengths <= {(), (0,)}:
            shapes = {name: array.shape for name, array in arrays.items()}
            raise StageError(f"calibrate.reader: {self.function} yields arrays of shape {shapes}; expected {wanted}")
        return arrays


def _batches(found: Any) -> Iterable[Any]:
    """Return the batches of a `CalibrationDataReader`, or of any other iterable."""
    return iter(found.get_next, None) if hasattr(found, "get_next") else found
