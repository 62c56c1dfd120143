"""One set becomes four: nothing lost, nothing twice, every class in proportion, and groups and times kept apart."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gauntlet.core.errors import StageError
from gauntlet.datasets.npz_arrays import NpzArrays
from gauntlet.datasets.splitting import (
    SplitFractions,
    complete_splits,
    keep_copies_together,
    split_indices,
    stratified_sample,
)

SHARES = st.tuples(st.integers(0, 4), st.integers(1, 4), st.integers(1, 4)).map(
    lambda parts: SplitFractions(validation=parts[0] / 20, calibration=parts[1] / 20, test=parts[2] / 20)
)


@given(
    classes=st.integers(2, 5),
    a_class=st.integers(40, 90),
    shares=SHARES,
    seed=st.integers(0, 99),
    labelled=st.booleans(),
)
def test_divide_is_disjoint_complete_and_stratified(
    classes: int, a_class: int, shares: SplitFractions, seed: int, labelled: bool
) -> None:
    count = classes * a_class
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(classes), a_class)) if labelled else None
    places = split_indices(count, labels, shares, seed)
    assert np.array_equal(np.sort(np.concatenate(list(places.values()))), np.arange(count))
    for name in ("validation", "calibration", "test"):
        share = getattr(shares, name)
        assert len(places.get(name, ())) == round(count * share)
        if labels is not None and share:
            found = np.bincount(labels[places[name]], minlength=classes)
            assert np.all(np.abs(found - a_class * share) <= 2)
    again = split_indices(count, labels, shares, seed)
    assert all(np.array_equal(places[name], again[name]) for name in places)


@pytest.mark.parametrize(
    ("count", "labels", "told"),
    [
        (3, None, "3 samples are too few: none is left for calibration"),
        (1, None, "1 samples are too few: none is left for test"),
    ],
)
def test_divide_is_refused_when_there_are_too_few(count: int, labels: np.ndarray | None, told: str) -> None:
    with pytest.raises(StageError, match=told):
        split_indices(count, labels, SplitFractions(), 0)


@pytest.mark.parametrize("labels", [np.array([0] * 39 + [1]), np.arange(40), np.array([0])], ids=["1 in 40", "40", "1"])
def test_classes_with_too_few_samples_are_in_some_splits(labels: np.ndarray) -> None:
    places = split_indices(40, np.resize(labels, 40), SplitFractions(), 0)
    assert np.sort(np.concatenate([*places.values()])).tolist() == [*range(40)]
    left, drawn = stratified_sample(np.arange(40), 8, np.resize(labels, 40), 0, "a test")
    assert (len(left), len(drawn)) == (32, 8)


def test_shares_are_refused_when_they_take_more_than_all() -> None:
    with pytest.raises(ValueError, match=r"take 1\.1 of the samples; at most 1 is allowed"):
        SplitFractions(validation=0.5, calibration=0.3, test=0.3)


@given(count=st.integers(20, 200), size=st.integers(5, 15), seed=st.integers(0, 9))
def test_draw_takes_so_many_of_the_numbers_and_leaves_the_others(count: int, size: int, seed: int) -> None:
    numbers, labels = np.arange(3, 3 * count + 3, 3), np.arange(3 * count + 3) // 3 % 4
    left, taken = stratified_sample(numbers, size, labels, seed, "a test")
    assert len(taken) == size
    assert np.array_equal(np.union1d(left, taken), numbers)
    assert np.ptp(np.bincount(labels[taken], minlength=4)) <= 2


def test_draw_is_refused_when_there_are_too_few() -> None:
    labels = np.zeros(9, np.int64)
    with pytest.raises(StageError, match="a try needs 9 images; the data has 9, and some must remain"):
        stratified_sample(np.arange(9), 9, labels, 0, "a try")


def test_copies_are_in_one_split_when_a_set_is_divided() -> None:
    digests = [str(number % 97).encode() for number in range(100)]  # the first three have a copy
    classes = np.arange(100) % 2
    for seed in range(20):
        indices = complete_splits(np.array([""] * 100), classes, SplitFractions(), seed, digests)
        assert np.array_equal(np.sort(np.concatenate(list(indices.values()))), np.arange(100))
        contents = [{digests[index] for index in chosen} for chosen in indices.values()]
        assert sum(map(len, contents)) == 97


def test_copies_stay_in_the_splits_that_the_user_made_when_another_split_is_drawn() -> None:
    names = np.array(["train"] * 40 + ["test"] * 10)
    digests = [str(number % 38).encode() for number in range(50)]  # 38 and 39 copy 0 and 1; the test copies 2 to 11
    for seed in range(20):
        indices = complete_splits(names, None, SplitFractions(), seed, digests)
        assert np.array_equal(np.sort(indices["test"]), np.arange(40, 50))
        drawn = {digests[index] for name in ("validation", "calibration") for index in indices[name]}
        assert not drawn & {digests[index] for index in indices["train"]}


def test_copies_stay_where_they_are_when_a_split_would_lose_most_of_a_class() -> None:
    digests = [b"no flag", b"flag"] * 20
    indices = split_indices(40, None, SplitFractions(), 0)
    assert keep_copies_together(indices, digests, None) is indices


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
