"""A race becomes a table: rows against one reference, its control, and why entries are not in it."""

import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import faulty_models
import numpy as np
import onnx
import onnx_text
import pytest
import synthetic_races
from clocked_workers import CLOCK
from synthetic_races import Interval

from gauntlet.race.contender import Entry, Plan
from gauntlet.race.machine_load import MachineLoad
from gauntlet.race.table import CONTROL, RaceTable, run_race
from gauntlet.runtime.realtime import is_permitted
from gauntlet.runtime.resources import usable_threads

PLAN = Plan(batch_sizes=(1, 4), rounds=6, block_ms=1, threads=1, timeout_s=60, restarts=False)
DICE = "dice (float[batch] x) => (float[batch] y) { noise = RandomNormalLike(x) y = Add(x, noise) }"


@pytest.fixture
def raced(tmp_path: Path):
    for most in (0, 1, 4):
        onnx.save(faulty_models.picky(most), tmp_path / f"{most}.onnx")
    onnx.save(onnx_text.model(DICE, {}), tmp_path / "dice.onnx")
    np.savez(tmp_path / "in.npz", x=np.ones(4, np.float32))

    def run(reference: str, *others: str, control: bool = True, restarts: bool = False) -> RaceTable:
        entries = {name: Entry(tmp_path / f"{name}.onnx") for name in (reference, *others)}
        plan = replace(PLAN, restarts=restarts)
        return run_race(entries, plan, reference, inputs=tmp_path / "in.npz", control=control)

    return run


def test_every_entry_has_rows_against_the_reference_or_a_reason(raced) -> None:
    table = raced("4", "1", "0", "dice")
    assert {name: [row.batch for row in rows] for name, rows in table.rows.items()} == {
        "4": [1, 4], "1": [1], "0": [], "dice": [],
    }  # fmt: skip
    assert (table.reference, {row.verdict for row in table.reference_rows}) == ("4", {"reference"})
    assert table.failures.keys() == {"1", "0", "dice"}
    assert table.failures["1"].startswith("batch 4: ")
    assert "out of data bounds" in table.failures["0"]
    assert "target.repeatability" in table.failures["dice"]
    assert table.failure("4", CONTROL, "0") == table.failures["0"]
    assert [row.batch for row in table.control] == [1, 4]
    assert table.aa_deviation == max(abs(row.speedup - 1) for row in table.control)


def test_memory_is_compared_where_both_ran_at_all_batch_sizes(raced) -> None:
    """A process that does not run the larger batches needs less memory for that reason alone."""
    ratios = {name: [row.memory_ratio for row in rows] for name, rows in raced("4", "1", restarts=True).rows.items()}
    assert ratios == {"4": [1.0, 1.0], "1": [None]}


def test_next_entry_is_the_reference_where_the_first_failed(raced) -> None:
    table = raced("0", "4", control=False)
    assert (table.reference, [row.verdict for row in table.rows["4"]]) == ("4", ["reference"] * 2)
    assert (table.control, CONTROL in table.contenders) == ((), False)
    assert math.isnan(table.aa_deviation)


@pytest.mark.slow
def test_witness_is_asked_where_other_work_may_interrupt_the_calls(tmp_path: Path) -> None:
    """One processor does both; the wall clock shows how they share it, and the processor's time what they need."""
    for size in (32, 512):
        text = f"square (float[batch, {size}] x) => (float[batch, {size}] y) {{ a = MatMul(x, w) y = MatMul(a, w) }}"
        onnx.save(onnx_text.model(text, {"w": np.eye(size, dtype=np.float32)}), tmp_path / f"{size}.onnx")
        np.savez(tmp_path / f"{size}.npz", x=np.ones((32, size), np.float32))
    entries = {f"{size}": Entry(tmp_path / f"{size}.onnx", inputs=tmp_path / f"{size}.npz") for size in (512, 32)}
    plan = replace(PLAN, batch_sizes=(32,), threads=usable_threads(), priority="normal")
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(usable_threads())]
    try:
        table = run_race(entries, plan, "512", inputs=tmp_path / "512.npz", control=False)
    finally:
        for process in busy:
            process.kill()
            process.wait()
    [row] = table.rows["32"]
    assert table.machine.is_disturbed(plan.threads)
    assert row.verdict == "faster"  # both say so
    assert row.speedup_low <= row.witness_speedup <= row.speedup_high


def test_witness_is_asked_at_batch_sizes_whose_turns_others_could_interrupt(
    raced, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = MachineLoad(load_average=(9, 9), steal_share=0, other_load_cores=99, exposed=(4,))
    monkeypatch.setattr("gauntlet.race.rounds.LoadMonitor.notes", lambda *_: load)
    commands = {str(ms): (sys.executable, "-c", CLOCK, str(ms)) for ms in (2, 1)}
    entries = {name: Entry(tmp_path / "4.onnx", command) for name, command in commands.items()}
    rows = run_race(entries, PLAN, "2", inputs=tmp_path / "in.npz").rows["1"]
    assert {row.batch: row.witness_speedup is not None for row in rows} == {1: False, 4: True}


@pytest.mark.skipif(not is_permitted(), reason="this user may not use SCHED_FIFO")
@pytest.mark.parametrize(("times_ms", "exposed"), [(("1", "150"), ()), (("150",), (1, 4))])
def test_slow_first_call_leaves_the_turns_their_priority(
    raced, tmp_path: Path, times_ms: tuple[str, ...], exposed: tuple[int, ...]
) -> None:
    commands = {"2": (sys.executable, "-c", CLOCK, "2"), "1": (sys.executable, "-c", CLOCK, *times_ms)}
    entries = {name: Entry(tmp_path / "4.onnx", command) for name, command in commands.items()}
    plan = replace(PLAN, priority="realtime", restarts=True)
    assert run_race(entries, plan, "2", inputs=tmp_path / "in.npz", control=False).machine.exposed == exposed


def test_witness_has_one_thread_whatever_the_options_say() -> None:
    entry = Entry(Path("m.onnx"), options={"threads": 2, "level": "all"}).in_one_thread()
    assert entry.request(Path("in.npz"), 4)[2:] == (1, {"level": "all"})


@pytest.mark.parametrize(
    ("witness", "speedup", "verdict"), [((3.3, 3.5, 3.7), 3.5, "faster"), ((0.9, 1, 1.1), 1, "not resolved")]
)
def test_figure_that_its_witness_contradicts_is_not_the_headline(
    witness: Interval, speedup: float, verdict: str
) -> None:
    wall, own = (synthetic_races.row(1, interval) for interval in ((6.0, 6.8, 7.0), witness))
    row = wall.with_witness(own)
    assert (row.speedup, row.speedup_low, row.speedup_high) == (speedup, witness[0], 7.0)
    assert (row.verdict, row.witness_speedup) == (verdict, witness[1])
    near = wall.with_witness(synthetic_races.row(1, (5.0, 5.5, 6.1)))
    assert (near.speedup, near.speedup_low, near.verdict) == (6.8, 5.0, "faster")
