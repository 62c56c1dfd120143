"""Arrays that say how to split: samples of one group stay in one split, the latest ones are for the test."""

from pathlib import Path

import numpy as np
import pytest

from gauntlet.core.errors import StageError
from gauntlet.datasets.npz_arrays import NpzArrays


@pytest.fixture
def patients(tmp_path: Path) -> NpzArrays:
    """Return 200 samples of 20 patients, whose input is the patient's number, and which are a year apart."""
    numbers = np.repeat(np.arange(20), 10)
    np.savez(tmp_path / "samples.npz", x=numbers[:, None].astype(np.float32), split_groups=numbers.astype(str))
    return NpzArrays(path=tmp_path / "samples.npz", split_fractions={"validation": 0, "calibration": 0.2, "test": 0.5})


def test_samples_of_one_group_are_in_one_split(patients: NpzArrays) -> None:
    dataset = patients.load()
    found = {name: {*split.take(slice(None))["x"][:, 0].tolist()} for name, split in dataset.splits.items()}
    assert [spec.name for spec in dataset.signature.inputs] == ["x"]
    assert {name: len(numbers) for name, numbers in found.items()} == {"train": 6, "calibration": 4, "test": 10}
    assert not found["train"] & found["test"]
    assert not found["calibration"] & (found["train"] | found["test"])
    other = patients.replace(seed=1).load().splits["test"].take(slice(None))["x"][:, 0]
    assert {*other.tolist()} != found["test"]


@pytest.mark.parametrize("times", [np.arange(200), np.datetime_as_string(np.datetime64("2020") + np.arange(200))])
def test_latest_samples_are_for_the_test(patients: NpzArrays, times: np.ndarray) -> None:
    shuffled = np.random.default_rng(0).permutation(200)
    np.savez(patients.path, x=shuffled[:, None].astype(np.float32), split_times=times[shuffled])
    splits = patients.load().splits
    numbers = {name: sorted(split.take(slice(None))["x"][:, 0].tolist()) for name, split in splits.items()}
    expected = {"train": range(60), "calibration": range(60, 100), "test": range(100, 200)}
    assert numbers == {name: [*part] for name, part in expected.items()}


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({"split_groups": np.repeat("a", 200)}, "1 different groups are too few: none is left for calibration"),
        ({"split_groups": np.zeros((200, 2))}, r"split_groups has shape \(200, 2\); expected one number or text"),
        ({"split_groups": np.arange(200), "split_times": np.arange(200)}, "only one of them can say how to split"),
        ({"split_times": np.repeat("12/31/2025", 200)}, "Fix: write numbers, or times as 2026-11-26T18:30"),
    ],
)
def test_wrong_groups_and_times_are_refused(patients: NpzArrays, arrays: dict[str, np.ndarray], reason: str) -> None:
    np.savez(patients.path, x=np.zeros((200, 1), np.float32), **arrays)
    with pytest.raises(StageError, match=reason):
        patients.load()
