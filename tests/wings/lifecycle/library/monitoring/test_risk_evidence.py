"""A risk at the bound raises no alarm however long one looks; one above or below it is proven."""

import numpy as np
import pytest

from wings.lifecycle.library.monitoring.risk_evidence import (
    exceeds_wealth,
    risk_lower_bound,
    risk_upper_bound,
    within_wealth,
)

BOUND = 0.06


def losses(seed: int, risk: float, count: int) -> np.ndarray:
    return (np.random.default_rng(seed).random(count) < risk).astype(float)


def test_risk_at_the_bound_seldom_alarms_at_any_look() -> None:
    streams = [losses(seed, BOUND, 3000) for seed in range(100)]
    assert sum(exceeds_wealth(one, BOUND).first_above(0.05) is not None for one in streams) <= 5
    assert sum(within_wealth(one, BOUND).first_above(0.05) is not None for one in streams) <= 5


def test_higher_risk_is_proven_soon_after_it_begins() -> None:
    alarm = exceeds_wealth(np.concatenate([losses(0, 0.02, 1000), losses(1, 0.3, 300)]), BOUND).first_above(0.025)
    assert alarm is not None and 1000 < alarm < 1080


def test_lower_risk_is_proven() -> None:
    alarm = within_wealth(losses(0, 0.01, 400), BOUND).first_above(0.05)
    assert alarm is not None and alarm > 40


def test_bounds_hold_the_risk() -> None:
    found = [
        (risk_lower_bound(losses(seed, 0.2, 800), 0.05), risk_upper_bound(losses(seed, 0.2, 800), 0.05))
        for seed in range(10)
    ]
    assert all(0.1 < low < 0.2 < high < 0.3 for low, high in found)


def test_without_labels_nothing_is_proven() -> None:
    assert (risk_lower_bound(np.zeros(0), 0.05), risk_upper_bound(np.zeros(0), 0.05)) == (0, 1)


def test_any_loss_between_zero_and_one_counts() -> None:
    assert exceeds_wealth(np.full(200, 0.5), BOUND).first_above(0.05) is not None
    assert risk_lower_bound(np.full(2000, 0.5), 0.05) == pytest.approx(0.5, abs=0.06)
