"""Undisturbed streams keep the rate of false alarms at every look, and changes are noticed."""

import numpy as np
import pytest
from drifting_digits import LIMITS, alarm_of, concept_drift, label_shift, population, stream

from wings.lifecycle.library.monitoring.drift_evidence import conformal_p_values, drift_wealth, log_bets

pytestmark = pytest.mark.slow


def test_p_values_are_ranks_among_the_reference_and_all_earlier_samples() -> None:
    random = np.random.default_rng(0)
    reference, samples = random.integers(0, 20, 30).astype(float), random.integers(0, 20, 700).astype(float)
    found = conformal_p_values(reference, samples, seed=3)
    uniform = np.random.default_rng(3).random(700)
    for i in (0, 1, 255, 256, 257, 699):
        seen = np.concatenate([reference, samples[: i + 1]])
        expected = (seen < samples[i]).sum() + uniform[i] * (seen == samples[i]).sum()
        assert found[i] == pytest.approx(expected / len(seen))


def test_p_values_of_equal_samples_are_uniform() -> None:
    found = conformal_p_values(np.zeros(10), np.zeros(4000), seed=0)
    assert np.abs(np.histogram(found, 10, (0, 1))[0] - 400).max() < 80


def test_missing_values_are_ranked_as_the_smallest() -> None:
    found = conformal_p_values(np.arange(9.0), np.array([np.nan, np.nan]), seed=0)
    assert (found < [0.1, 0.2]).all()


def test_no_bet_is_placed_on_a_sample_that_the_log_lacks() -> None:
    random = np.random.default_rng(0)
    reference, samples = random.random(200), random.random(400) + 0.5
    gaps = samples.copy()
    gaps[[0, 1, 100]] = np.nan
    found, whole = (drift_wealth(reference, one, seed=0) for one in (gaps, samples[~np.isnan(gaps)]))
    assert np.abs(found.log[:2]).max() < 1e-9
    assert abs(found.log[-1] - whole.log[-1]) < 2  # of some hundred; bets that begin later have other weights
    assert found.first_above(0.001) is not None


def test_every_bet_is_a_density() -> None:
    logits = np.linspace(-27, 27, 50_001)  # the powers have a pole at the ends
    p = 1 / (1 + np.exp(-logits))
    integrals = np.trapezoid(np.exp(log_bets(p)) * (p * (1 - p))[:, None], logits, axis=0)
    assert np.allclose(integrals, 1, atol=0.04)


def test_undisturbed_streams_seldom_alarm_at_any_look() -> None:
    alarms = [alarm_of(stream(seed, 2000, labeled=1.0)) for seed in range(20)]
    assert sum(alarm is not None for alarm in alarms) <= LIMITS.false_alarms * 20


@pytest.mark.parametrize(
    ("how", "within"),
    [
        ({"after": population("brightness", 5)}, 60),
        ({"after": population("noise", 4)}, 60),
        ({"weights": label_shift(5)}, 400),
        ({"after": concept_drift(5), "labeled": 1.0}, 120),
    ],
    ids=["brightness", "noise", "label shift", "concept drift"],
)
def test_change_is_noticed(how: dict[str, object], within: int) -> None:
    alarm = alarm_of(stream(1, 2600, changed=2000, **how))  # type: ignore[arg-type]
    assert alarm is not None and 2000 <= alarm < 2000 + within
