"""Paired statistics: known values, properties, and intervals that keep their promise."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from gauntlet.metrics.paired_accuracy import drop_interval, images_to_resolve, mcnemar, pair_accuracies

COUNTS = st.integers(0, 60)


@given(lost=COUNTS, gained=COUNTS)
def test_mcnemar_is_the_binomial_test_of_the_changed_images(lost: int, gained: int) -> None:
    expected = binomtest(lost, lost + gained).pvalue if lost + gained else 1.0
    assert mcnemar(lost, gained) == pytest.approx(expected)


@given(lost=COUNTS, gained=COUNTS, same=st.integers(0, 500))
def test_interval_holds_the_drop_and_turns_with_the_models(lost: int, gained: int, same: int) -> None:
    images = lost + gained + same + 1
    low, high = drop_interval(lost, gained, images)
    assert low <= (lost - gained) / images * images / (images + 2) <= high
    assert drop_interval(gained, lost, images) == pytest.approx((-high, -low))


def test_interval_holds_the_truth_as_often_as_it_says() -> None:
    rng, images, truth = np.random.default_rng(0), 360, 0.01
    lost, gained, _ = rng.multinomial(images, [0.02, 0.01, 0.97], size=4000).T
    ends = [drop_interval(a, b, images) for a, b in zip(lost.tolist(), gained.tolist(), strict=True)]
    assert 0.94 <= np.mean([low <= truth <= high for low, high in ends]) <= 0.99


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=80))
def test_compare_counts_what_changed(pairs: list[tuple[bool, bool]]) -> None:
    before, after = (np.array(side) for side in zip(*pairs, strict=True))
    found = pair_accuracies(before, after)
    assert found.drop == pytest.approx(np.mean(before) - np.mean(after))
    assert found.lost + found.gained == np.sum(before != after)
    assert found.low <= found.high


def changed(lost: int, gained: int, images: int) -> tuple[np.ndarray, np.ndarray]:
    before, after = np.ones(images, bool), np.ones(images, bool)
    before[:gained] = False
    after[gained : gained + lost] = False
    return before, after


@pytest.mark.parametrize(
    ("lost", "gained", "images", "expected"),
    [(0, 0, 360, "proven good"), (40, 0, 360, "proven bad"), (3, 1, 360, "not resolved"), (0, 0, 20, "not resolved")],
)
def test_verdict_has_three_answers(lost: int, gained: int, images: int, expected: str) -> None:
    assert pair_accuracies(*changed(lost, gained, images)).verdict(0.01) == expected


def test_images_to_resolve_do_resolve_and_one_less_does_not() -> None:
    needed = images_to_resolve(pair_accuracies(*changed(3, 1, 360)), 0.01)
    assert needed > 360
    for images, settled in ((needed, True), (needed - 1, False)):
        low, high = drop_interval(3 * images / 360, images / 360, images)
        assert (high <= 0.01 or low > 0.01) is settled


def test_no_number_of_images_resolves_a_loss_that_equals_the_limit() -> None:
    assert images_to_resolve(pair_accuracies(*changed(4, 0, 400)), 0.01) is None
    assert math.isfinite(pair_accuracies(*changed(4, 0, 400)).high)
