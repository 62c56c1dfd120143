"""A calibration reader of the user's own: a Python function that yields the inputs to calibrate with."""

from itertools import islice
from typing import Any

import numpy as np

from gauntlet.core.errors import StageError
from gauntlet.core.signature import Signature
from gauntlet.core.user_code import UserFunction
from gauntlet.datasets.splits import ArraySplit


def read_batches(reader: UserFunction, signature: Signature, images: int) -> ArraySplit:
    """Return the first samples, at most `images`, of what a function without arguments yields.

    It returns an iterable of dictionaries: arrays (n, ...) by the model's inputs. A class that is a
    `CalibrationDataReader` of ONNX Runtime is such a function, too.

    Raises:
        StageError: when the function fails, or what it yields does not fit the model's inputs.
    """
    function = reader.load()
    names = [spec.name for spec in signature.inputs]
    parts: list[dict[str, np.ndarray[Any, Any]]] = []
    try:
        result = function()  # a `CalibrationDataReader`, or any other iterable
        for batch in islice(iter(result.get_next, None) if hasattr(result, "get_next") else result, images):
            parts.append(_checked(reader, batch, names))
            if sum(len(part[names[0]]) for part in parts) >= images:
                break
    except StageError:
        raise
    except Exception as error:  # the user's code may raise anything
        raise StageError(f"calibrate.reader: {reader.function} fails: {type(error).__name__}: {error}") from error
    if not parts:
        raise StageError(f"calibrate.reader: {reader.function} yields nothing; yield arrays of {', '.join(names)}")
    shapes = {name: {part[name].shape[1:] for part in parts} for name in names}
    if uneven := next((name for name, sizes in shapes.items() if len(sizes) > 1), None):
        text = ", ".join(map(str, sorted(shapes[uneven])))
        raise StageError(f"calibrate.reader: {reader.function} yields {uneven!r} in different sizes ({text})")
    return ArraySplit({name: np.concatenate([part[name] for part in parts])[:images] for name in names})


def _checked(reader: UserFunction, batch: object, names: list[str]) -> dict[str, np.ndarray[Any, Any]]:
    """Return the arrays of one batch by the names of the inputs."""
    expected = f"a dictionary with arrays of shape (n, ...) for {', '.join(names)}"
    if not isinstance(batch, dict) or set(batch) != set(names):
        actual = f"one of {sorted(map(str, batch))}" if isinstance(batch, dict) else type(batch).__name__
        raise StageError(f"calibrate.reader: {reader.function} yields {actual}; expected {expected}")
    arrays = {name: np.asarray(batch[name]) for name in names}
    lengths = {array.shape[:1] for array in arrays.values()}
    if len(lengths) != 1 or lengths <= {(), (0,)}:
        shapes = {name: array.shape for name, array in arrays.items()}
        raise StageError(f"calibrate.reader: {reader.function} yields arrays of shape {shapes}; expected {expected}")
    return arrays
