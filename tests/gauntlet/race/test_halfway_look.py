"""A race ends halfway where its result is plain by then, and its intervals hold all the same."""

import sys
from pathlib import Path

import numpy as np
import onnx
import onnx_text
import pytest
from clocked_workers import CLOCK
from simulated_races import bursts, contender, normal, rounds

from gauntlet.race.contender import Contender, Entry, Plan
from gauntlet.race.halfway_look import HalfwayLook
from gauntlet.race.rows import rows
from gauntlet.race.table import run_race

LOOK = HalfwayLook.of(16, 0.95, 1.05)


def race(random: np.random.Generator, speedup: float, noise=normal, **how: float) -> dict[str, Contender]:
    times = rounds(random, lambda *args: noise(*args, **how), [3.0, 3.0, 3.0 / speedup], 16)
    return {name: contender(name, own) for name, own in zip(("fp32", "control", "int8"), times, strict=True)}


def until(done: int, contenders: dict[str, Contender]) -> dict[str, Contender]:
    return {name: contender(name, np.array(c.round_quartiles_ms[1][:done])) for name, c in contenders.items()}


def ends(contenders: dict[str, Contender], done: int = 8) -> bool:
    assert LOOK is not None
    return LOOK.ends(done, until(done, contenders), "fp32")


def test_look_shares_the_risk_of_the_race_with_its_end() -> None:
    assert LOOK is not None
    assert (LOOK.after_round, (1 - LOOK.early) + (1 - LOOK.late)) == (8, pytest.approx(0.05))


@pytest.mark.parametrize(("count", "required"), [(15, 1.05), (6, 1.05), (16, None)])
def test_short_race_and_one_that_decides_nothing_have_no_look(count: int, required: float | None) -> None:
    assert HalfwayLook.of(count, 0.95, required) is None


def test_quiet_race_ends_halfway_only() -> None:
    quiet = race(np.random.default_rng(0), 2.0, deviation=0.005)
    assert [done for done in range(1, 16) if ends(quiet, done)] == [8]


@pytest.mark.parametrize(("speedup", "how"), [(2.0, {"deviation": 0.04}), (1.05, {"deviation": 0.005})])
def test_race_goes_on_where_it_is_noisy_or_undecided(speedup: float, how: dict[str, float]) -> None:
    assert not ends(race(np.random.default_rng(0), speedup, **how))


def test_undecided_contender_that_another_beats_does_not_prolong_the_race() -> None:
    times = rounds(np.random.default_rng(0), lambda *args: normal(*args, deviation=0.005), [3, 3, 3 / 1.05, 1], 16)
    contenders = {name: contender(name, own) for name, own in zip(("fp32", "aa", "slow", "best"), times, strict=True)}
    assert ends(contenders)
    assert not ends({name: contenders[name] for name in ("fp32", "aa", "slow")})


def test_contender_that_was_stopped_does_not_prolong_the_race() -> None:
    contenders = until(8, race(np.random.default_rng(0), 2.0, deviation=0.005))
    contenders["slow"] = contender("slow", np.array([3.0, 9.0, 27.0]))
    contenders["slow"].stopped[1] = None  # type: ignore[assignment] - why does not matter
    assert LOOK is not None
    assert LOOK.ends(8, contenders, "fp32")


@pytest.mark.parametrize(("noise", "how"), [(normal, {"deviation": 0.01}), (normal, {"deviation": 0.02}), (bursts, {})])
@pytest.mark.parametrize("speedup", [1.0, 1.06, 2.0])
def test_interval_holds_the_truth_whenever_the_race_ends(speedup: float, noise, how: dict[str, float]) -> None:
    assert LOOK is not None
    random, missed, races = np.random.default_rng(7), 0, 400
    for _ in range(races):
        whole = race(random, speedup, noise, **how)
        early = ends(whole)
        run = until(8, whole) if early else whole
        [row] = rows(run["int8"], run["fp32"], resolution=0, confidence=LOOK.early if early else LOOK.late)
        missed += not row.speedup_low <= speedup <= row.speedup_high
    assert missed / races < 0.05 + 2 * np.sqrt(0.05 * 0.95 / races)


@pytest.mark.slow
@pytest.mark.parametrize(("required", "expected"), [(1.05, 8), (None, 16)])
def test_race_of_real_workers_ends_at_the_look(tmp_path: Path, required: float | None, expected: int) -> None:
    onnx.save(onnx_text.model("relu (float[b,4] x) => (float[b,4] y) { y = Relu(x) }"), tmp_path / "model.onnx")
    np.savez(tmp_path / "inputs.npz", x=np.ones((1, 4), np.float32))
    plan = Plan((1,), 16, block_ms=20, threads=1, timeout_s=60, restarts=False)
    commands = {name: (sys.executable, "-c", CLOCK, ms) for name, ms in {"fp32": "5", "int8": "2"}.items()}
    entries = {name: Entry(tmp_path / "model.onnx", command) for name, command in commands.items()}
    table = run_race(entries, plan, "fp32", inputs=tmp_path / "inputs.npz", required_speedup=required)
    assert table.rounds == expected
    assert len(table.contenders["int8"].round_quartiles_ms[1]) == expected
