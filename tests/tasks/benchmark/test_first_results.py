"""The speed-ups are on the terminal when the race ends, before the winner is raced again."""

import logging

import pytest
from synthetic_races import synthetic_race

from flows.stage import _log_verdict
from gauntlet.core.report import Report

RACE = synthetic_race({"slow": (0.4, 0.5, 0.6), "static-u8s8": (3.4, 3.5, 3.6), "broken": "out of memory"})
LINES = (
    "static-u8s8  3.50x [3.40, 3.60], batch 1",
    "fp32         1.00x [1.00, 1.00], batch 1",
    "slow         0.50x [0.40, 0.60], batch 1",
)


def test_fastest_comes_first_and_what_was_not_measured_is_left_out() -> None:
    assert RACE.first_results() == LINES


def test_log_has_them_below_the_verdict_of_the_race(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "gauntlet"):
        _log_verdict(Report(stage="benchmark", facts=RACE, seconds=12.0))
    assert caplog.messages == ["benchmark passed, 0 checks (12.0 s)", *(f"  {line}" for line in LINES)]
