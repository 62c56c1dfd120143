"""What drift_peers.py gives a library's script; of NumPy alone, because that script has an environment of its own."""

from typing import NamedTuple

import numpy as np

CATEGORY = "predicted class"
"""The one feature that is no number."""


class Windows(NamedTuple):
    """References, shape (streams, rows, features), and the streams beside them, to look at in windows of `size`."""

    names: list[str]
    references: np.ndarray
    streams: np.ndarray
    size: int


def read_windows(source: str) -> Windows:
    """Read the file that drift_peers.py has written."""
    with np.load(source) as file:
        return Windows(file["names"].tolist(), file["references"], file["streams"], int(file["size"]))
