"""Dropping the dominated early: the same winner as when everybody runs to the end, for at most half the time."""

import json
from pathlib import Path

import numpy as np
import pytest
from noise import NOISES, Blocks, normal, rounds

from tasks.benchmark.certainty import shift_interval
from tasks.benchmark.elimination import FIRST_LOOK, LAST_HOPE, NEAR, Drop, leaving

ROUNDS = 16
WARM_UP_ROUNDS = 1
"""The two half blocks before the first round, which nobody is spared."""
KEEP = ("fp32", "control")
SOME = [
    pytest.param(name, marks=() if name in ("bursts", "sticky_modes") else pytest.mark.slow, id=name) for name in NOISES
]
RECORDED = json.loads(Path(__file__).with_name("recorded_races.json").read_text())


def winner(times: dict[str, Blocks], names: list[str]) -> str:
    """Return who is the fastest, against the reference in the same rounds."""
    return max(names, key=lambda name: shift_interval(np.log(times["fp32"]) - np.log(times[name]))[0])


def eliminate(
    times: dict[str, Blocks], count: int, usual: dict[str, str] | None = None
) -> tuple[dict[str, Drop], float]:
    """Run a race whose times are known; return who was dropped, and the time spent as a share of the whole race's."""
    drops: dict[str, Drop] = {}
    spent = sum(float(np.mean(series)) for series in times.values()) * WARM_UP_ROUNDS
    whole = spent + sum(float(series[:count].sum()) for series in times.values())
    for done in range(1, count + 1):
        running = {name: series[:done] for name, series in times.items() if name not in drops}
        spent += sum(float(series[-1]) for series in running.values())
        drops |= leaving(running, keep=KEEP, contenders=len(times), rounds=count, usual=usual)
    return drops, spent / whole


def field(random: np.random.Generator) -> list[float]:
    """Return the costs of a reference, its control and 22 candidates; up to three of these are nearly the best."""
    near = 0.3 * random.uniform(1, 1.06, random.integers(1, 4))
    return [10.0, 10.0, *(10 * near), *(10 * np.exp(random.uniform(-0.7, 0.7, 22 - len(near))))]


@pytest.mark.parametrize("noise", SOME)
def test_racing_has_the_same_winner_for_half_the_time_when_there_are_many_candidates(noise: str) -> None:
    random = np.random.default_rng(3)
    shares = []
    for _ in range(30):
        costs = field(random)
        names = ["fp32", "control", *(f"c{i}" for i in range(len(costs) - 2))]
        times = dict(zip(names, rounds(random, NOISES[noise], costs, ROUNDS), strict=True))
        drops, _ = eliminate(times, ROUNDS)
        assert winner(times, [n for n in names if n not in drops]) == winner(times, names)
        assert not drops.keys() & set(KEEP)
        # All blocks take the same time, so the share of the blocks is that of the time.
        spent = sum(drops[name].after_round if name in drops else ROUNDS for name in names)
        shares.append((spent + WARM_UP_ROUNDS * len(names)) / ((ROUNDS + WARM_UP_ROUNDS) * len(names)))
    assert np.mean(shares) <= 0.5


@pytest.mark.parametrize("noise", SOME)
def test_best_candidate_is_not_dropped_when_all_are_nearly_equal(noise: str) -> None:
    random = np.random.default_rng(4)
    mistakes = 0
    for _ in range(40):
        costs = [3.0, 3.0, *random.uniform(2.9, 3.1, 10)]
        names = ["fp32", "control", *(f"c{i}" for i in range(10))]
        times = dict(zip(names, rounds(random, NOISES[noise], costs, ROUNDS), strict=True))
        drops, _ = eliminate(times, ROUNDS)
        mistakes += names[int(np.argmin(costs))] in drops
    assert mistakes <= 2


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
        assert leaving({n: t[:done] for n, t in times.items()}, keep=["fp32"], contenders=2, rounds=ROUNDS) == {}
    assert leaving(times, keep=["fp32"], contenders=2, rounds=ROUNDS) == {}
    told = leaving({n: t[:FIRST_LOOK] for n, t in times.items()}, keep=["fp32"], contenders=2, rounds=ROUNDS)
    assert told == {"slow": Drop(after_round=FIRST_LOOK, rival="fp32")}


def test_reference_stays_when_it_is_the_slowest_by_far() -> None:
    random = np.random.default_rng(0)
    costs = dict(zip(("fp32", "control", "fast", "slow"), rounds(random, normal, [9, 9, 1, 8], 8), strict=True))
    assert leaving(costs, keep=KEEP, contenders=4, rounds=ROUNDS).keys() == {"slow"}


def test_control_leads_under_the_name_of_the_reference_that_it_is() -> None:
    random = np.random.default_rng(0)
    costs = dict(zip(("fp32", "control", "slow"), rounds(random, normal, [5, 4.9, 8], 8), strict=True))
    assert leaving(costs, keep=KEEP, contenders=3, rounds=ROUNDS)["slow"].rival == "fp32"


def in_sessions(random: np.random.Generator) -> tuple[dict[str, float], dict[str, str]]:
    """Return the costs of FP32, its control and two INT8 files, each in five sessions, and each session's usual one."""
    costs, usual = {"fp32": 10.0, "control": 10.0}, {}
    for file, cost in {"fp32": 10.0, "int8": 3.1, "inputs8": 3.1 * random.uniform(0.98, 1.02)}.items():
        costs[file] = cost
        gains = [random.uniform(1.05, 1.8), *random.choice([1, 1, 1, 1.05, 1.1, 0.9], 3)]
        for i, gain in enumerate(gains):
            costs[f"{file} {i}"], usual[f"{file} {i}"] = cost * gain, file
    return costs, usual


@pytest.mark.parametrize("noise", SOME)
def test_racing_sessions_has_an_equal_winner_for_half_the_rounds(noise: str) -> None:
    random, shares = np.random.default_rng(1), []
    for _ in range(12):
        costs, usual = in_sessions(random)
        times = dict(zip(costs, rounds(random, NOISES[noise], [*costs.values()], ROUNDS), strict=True))
        drops, _ = eliminate(times, ROUNDS, usual)
        whole, early = winner(times, [*costs]), winner(times, [name for name in costs if name not in drops])
        assert costs[early] <= costs[whole] * (1 + NEAR)
        assert all(drop.rival == usual[name] for name, drop in drops.items() if drop.reason == "no faster")
        shares.append(sum(drops[name].after_round if name in drops else ROUNDS for name in costs) / len(costs) / ROUNDS)
    assert np.mean(shares) <= 0.5


def test_session_that_left_would_seldom_have_been_faster_in_the_whole_race() -> None:
    random, left = np.random.default_rng(2), []
    for _ in range(60):
        gains = random.uniform(-0.04, 0.04, 8)
        costs = {"fp32": 3.0, **{f"s{i}": 3.0 * np.exp(-gain) for i, gain in enumerate(gains)}}
        times = dict(zip(costs, rounds(random, normal, [*costs.values()], ROUNDS), strict=True))
        drops, _ = eliminate(times, ROUNDS, dict.fromkeys([*costs][1:], "fp32"))
        gained = {name: float(np.mean(np.log(times["fp32"]) - np.log(times[name]))) for name in drops}
        left += [gained[name] > NEAR for name, drop in drops.items() if drop.reason == "no faster"]
    assert len(left) > 200
    assert np.mean(left) <= LAST_HOPE


def test_file_as_fast_as_another_stays_where_a_session_leaves() -> None:
    times = dict(zip(("fp32", "int8", "other", "session"), np.full((4, 8), 3.0), strict=True))
    found = leaving(times, keep=["fp32"], contenders=4, rounds=ROUNDS, usual={"session": "int8"})
    assert found == {"session": Drop(8, "int8", "no faster")}
    gone = {name: series for name, series in times.items() if name != "int8"}
    assert leaving(gone, keep=["fp32"], contenders=4, rounds=ROUNDS, usual={"session": "int8"}) == {}
