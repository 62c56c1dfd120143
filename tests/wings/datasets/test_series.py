"""Windows of one series in a random split: they are warned of, and tables are not taken for them."""

from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_iris, load_linnerud, load_wine

from gauntlet.datasets.npz_arrays import NpzArrays

RANDOM = np.random.default_rng(0)
SERIES = RANDOM.standard_normal((400, 2)).astype(np.float32)


def windows(steps: int, stride: int) -> np.ndarray:
    parts = np.lib.stride_tricks.sliding_window_view(SERIES, steps, axis=0)[::stride].transpose(0, 2, 1)
    return RANDOM.permutation(parts)


def checked(path: Path, **arrays: np.ndarray) -> list[str]:
    np.savez(path, **arrays)
    return [check.name for check in NpzArrays(path=path).load().checks]


@pytest.mark.parametrize(("steps", "stride"), [(4, 1), (24, 1), (24, 12)])
def test_windows_that_overlap_are_warned_of_unless_times_split_them(tmp_path: Path, steps: int, stride: int) -> None:
    series = windows(steps, stride)
    assert checked(tmp_path / "a.npz", x=series) == ["data.overlapping_windows"]
    assert checked(tmp_path / "b.npz", x=series[:, :, 0]) == ["data.overlapping_windows"]
    assert checked(tmp_path / "c.npz", x=series, split_times=np.arange(len(series))) == []


def test_no_table_of_scikit_learn_is_taken_for_windows(tmp_path: Path) -> None:
    for load in (load_iris, load_wine, load_breast_cancer, load_diabetes, load_digits, load_linnerud):
        assert checked(tmp_path / "a.npz", x=load().data) == []
    for table in (windows(24, 13), np.eye(9)[RANDOM.integers(0, 9, 300)], RANDOM.integers(0, 5, (900, 6))):
        assert checked(tmp_path / "a.npz", x=table) == []
    tokens = np.pad(RANDOM.integers(1, 900, (300, 20)), ((0, 0), (0, 44)))
    assert checked(tmp_path / "a.npz", x=tokens) == []
