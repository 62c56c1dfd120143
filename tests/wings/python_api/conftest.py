"""Samples in the forms of this folder's tests, and a model that takes them."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx_text
import pandas as pd
import pytest

from gauntlet.core.artifact import Store

X = np.arange(24, dtype=np.float64).reshape(6, 4)
Y = np.arange(6)
TABLE = pd.DataFrame(X, columns=list("abcd"))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def model(tmp_path: Path) -> str:
    return onnx_text.save(tmp_path / "one.onnx", "one (float[n,4] values) => (float[n,4] y) { y = Relu(values) }")


def read(file: str | None) -> dict[str, Any]:
    assert file is not None
    with np.load(file) as arrays:
        return {name: arrays[name].tolist() for name in arrays.files}
