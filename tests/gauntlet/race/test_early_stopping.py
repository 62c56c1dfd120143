"""Dropping the dominated early: the same winner as when everybody runs to the end, for at most half the time."""

import json
from pathlib import Path

import numpy as np
import pytest
from simulated_races import KEEP, NOISES, ROUNDS, best_dropped, eliminate, many_candidates, normal, rounds, winner

from gauntlet.race.early_stopping import FIRST_LOOK, FUTILITY_PROBABILITY, MIN_DIFFERENCE, EarlyStop, contenders_to_stop

RECORDED = json.loads(Path(__file__).with_name("recorded_races.json").read_text())


@pytest.mark.parametrize("noise", NOISES)
def test_racing_has_the_same_winner_for_half_the_time_when_there_are_many_candidates(noise: str) -> None:
    others, share = many_candidates(NOISES[noise], races=30)
    assert others == 0
    assert share <= 0.5


@pytest.mark.parametrize("noise", NOISES)
def test_best_candidate_is_not_dropped_when_all_are_nearly_equal(noise: str) -> None:
    assert best_dropped(NOISES[noise], races=40) <= 2


@pytest.mark.parametrize("name", RECORDED)
def test_racing_has_the_same_winner_for_less_time_when_real_races_are_replayed(name: str) -> None:
    race = RECORDED[name]
    for recorded in race["blocks_ms"].values():
        times = {name: np.array(series) for name, series in recorded.items()}
        drops, share = eliminate(times, race["rounds"])
        assert winner(times, [n for n in times if n not in drops]) == winner(times, list(times))
        assert share <= race["at_most"]


def test_nobody_is_dropped_when_too_few_rounds_are_done_or_none_is_left() -> None:
    times = {"fp32": [10.0] * ROUNDS, "slow": [90.0, 91.0] * (ROUNDS // 2)}
    for done in range(1, FIRST_LOOK):
        assert (
            contenders_to_stop({n: t[:done] for n, t in times.items()}, keep=["fp32"], contenders=2, rounds=ROUNDS)
            == {}
        )
    assert contenders_to_stop(times, keep=["fp32"], contenders=2, rounds=ROUNDS) == {}
    told = contenders_to_stop({n: t[:FIRST_LOOK] for n, t in times.items()}, keep=["fp32"], contenders=2, rounds=ROUNDS)
    assert told == {"slow": EarlyStop(after_round=FIRST_LOOK, compared_with="fp32")}


def test_reference_stays_when_it_is_the_slowest_by_far() -> None:
    random = np.random.default_rng(0)
    costs = dict(zip(("fp32", "control", "fast", "slow"), rounds(random, normal, [9, 9, 1, 8], 8), strict=True))
    assert contenders_to_stop(costs, keep=KEEP, contenders=4, rounds=ROUNDS).keys() == {"slow"}


def test_control_leads_under_the_name_of_the_reference_that_it_is() -> None:
    random = np.random.default_rng(0)
    costs = dict(zip(("fp32", "control", "slow"), rounds(random, normal, [5, 4.9, 8], 8), strict=True))
    assert contenders_to_stop(costs, keep=KEEP, contenders=3, rounds=ROUNDS)["slow"].compared_with == "fp32"


def test_session_that_left_would_seldom_have_been_faster_in_the_whole_race() -> None:
    random, left = np.random.default_rng(2), []
    for _ in range(60):
        gains = random.uniform(-0.04, 0.04, 8)
        costs = {"fp32": 3.0, **{f"s{i}": 3.0 * np.exp(-gain) for i, gain in enumerate(gains)}}
        times = dict(zip(costs, rounds(random, normal, [*costs.values()], ROUNDS), strict=True))
        drops, _ = eliminate(times, ROUNDS, dict.fromkeys([*costs][1:], "fp32"))
        gained = {name: float(np.mean(np.log(times["fp32"]) - np.log(times[name]))) for name in drops}
        left += [gained[name] > MIN_DIFFERENCE for name, drop in drops.items() if drop.reason == "no faster"]
    assert len(left) > 200
    assert np.mean(left) <= FUTILITY_PROBABILITY


def test_file_as_fast_as_another_stays_where_a_session_leaves() -> None:
    times = dict(zip(("fp32", "int8", "other", "session"), np.full((4, 8), 3.0), strict=True))
    found = contenders_to_stop(times, keep=["fp32"], contenders=4, rounds=ROUNDS, baselines={"session": "int8"})
    assert found == {"session": EarlyStop(8, "int8", "no faster")}
    gone = {name: series for name, series in times.items() if name != "int8"}
    assert contenders_to_stop(gone, keep=["fp32"], contenders=4, rounds=ROUNDS, baselines={"session": "int8"}) == {}
