"""The race itself: a worker that dies in the middle of it costs its own contender only."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from time import monotonic

import faulty_models
import numpy as np
import onnx
import onnx_text
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gauntlet.race.confidence import CONFIDENCE, least_rounds, median_shift_interval
from gauntlet.race.contender import TURNS, Contender, Entry, Plan
from gauntlet.race.machine_load import LoadMonitor
from gauntlet.race.rounds import WARM_UP_BLOCKS, _turns, run_rounds
from gauntlet.race.rows import ONE_PROCESS, rows
from gauntlet.runtime.realtime import TASKS
from gauntlet.runtime.worker import ENGINE, WORKER_COMMAND
from gauntlet.runtime.worker_client import WorkerClient, WorkerTemplate

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_process_is_left")]
NAMES = ("fp32", "victim", "other")


def workers() -> list[psutil.Process]:
    """Return the running workers, in the order of their start; what they are copied from is none."""
    children = psutil.Process().children(recursive=True)
    alive = [p for p in children if p.status() != psutil.STATUS_ZOMBIE]  # of other tests' pools
    leaders = [p for p in alive if "gauntlet.runtime.worker" in p.cmdline() and os.getsid(p.pid) == p.pid]
    found = [p for p in leaders if p.ppid() != os.getpid() or p.cmdline()[-1] != ENGINE]
    return sorted(found, key=lambda p: (p.create_time(), p.pid))


@pytest.fixture
def run(trained, tmp_path: Path) -> Callable[..., dict[str, Contender]]:
    np.savez(tmp_path / "inputs.npz", input=np.ones((2, 3, 32, 32), np.float32))

    def go(
        on_round: Callable[[int], None], timeout_s: float = 60, restarts: bool = True, **special: Entry
    ) -> dict[str, Contender]:
        plan = Plan((1, 2), rounds=6, block_ms=1, threads=1, timeout_s=timeout_s, min_calls=3, restarts=restarts)
        entries = dict.fromkeys(NAMES, Entry(trained.path)) | special
        return run_rounds(entries, tmp_path / "inputs.npz", plan, on_round=on_round)[0]

    return go


def counts(contender: Contender) -> dict[int, int]:
    return {batch: len(values) for batch, values in contender.round_medians_ms.items()}


def test_race_goes_on_when_a_worker_is_killed_in_the_third_round(run) -> None:
    rounds: list[int] = []

    def watch(done: int) -> None:
        rounds.append(done)
        if done == 3:
            workers()[NAMES.index("victim")].kill()

    contenders = run(watch)
    assert rounds == [1, 2, 3, 4, 5, 6]
    assert contenders["victim"].error == "the worker was killed by signal 9"
    assert counts(contenders["victim"]) == {1: 3, 2: 3}
    for name in ("fp32", "other"):
        assert contenders[name].error is None
        assert counts(contenders[name]) == {1: 6, 2: 6}
    assert workers() == []


def test_race_goes_on_when_a_model_wants_more_memory_than_it_may_have(tmp_path: Path) -> None:
    """It is small as a file, and fills 8 GB when it runs."""
    fine = onnx_text.model("fine (float[batch,1] x) => (float[batch,1] y) { y = Relu(x) }")
    eater = onnx_text.model("""
        eater (float[batch,1] x) => (float[batch,1] y)
        <int64[2] wide = {1, 2147483648}, int64[1] axes = {1}>
        {
            e = Expand(x, wide)
            y = ReduceMax(e, axes)
        }
    """)
    np.savez(tmp_path / "inputs.npz", x=np.ones((2, 1), np.float32))
    onnx.save(fine, tmp_path / "fine.onnx")
    onnx.save(eater, tmp_path / "eater.onnx")
    entries = {name: Entry(tmp_path / f"{name}.onnx", options={"memory_bytes": 1 << 28}) for name in ("fine", "eater")}
    plan = Plan(batch_sizes=(1,), rounds=6, block_ms=1, threads=1, timeout_s=60, restarts=False)
    contenders = run_rounds(entries, tmp_path / "inputs.npz", plan)[0]
    assert "alloc" in str(contenders["eater"].error).lower()
    assert contenders["fine"].error is None
    assert counts(contenders["fine"]) == {1: 6}


@pytest.mark.parametrize("restarts", [False, True])
def test_race_goes_on_when_a_worker_hangs_after_a_round(run, trained, tmp_path: Path, restarts: bool) -> None:
    code = "import sys, time; from pathlib import Path; from gauntlet.runtime.worker import Worker, serve; "
    code += f"memory = Worker.memory; at = Path({str(tmp_path / 'hang')!r}); "
    code += "Worker.memory = lambda self: (at.exists() and (at.unlink(), time.sleep(60)), memory(self))[1]; "
    code += "serve(sys.stdin, sys.stdout)"

    def watch(done: int) -> None:
        if done == 4:
            (tmp_path / "hang").touch()

    victim = Entry(trained.path, command=(sys.executable, "-c", code))
    contenders = run(watch, timeout_s=3, restarts=restarts, victim=victim)
    victim = contenders["victim"]
    if restarts:
        assert victim.error == "no reply to 'memory' within 3 s; the worker was stopped"
        assert counts(victim) == {1: 4, 2: 4}
    else:
        assert victim.error is None
        [(batch, why)] = victim.failed.items()
        assert why == "no reply to 'run' within 3 s; the worker was stopped"
        assert counts(victim) == {batch: 4, 3 - batch: 6}
    assert counts(contenders["other"]) == {1: 6, 2: 6}
    assert workers() == []


def dies_at(batch: int) -> tuple[str, ...]:
    """Return the command of a worker that crashes when it is asked to run that many samples."""
    code = "import os, sys; from gauntlet.runtime.worker import Worker, serve; run = Worker.run; "
    code += f"Worker.run = lambda self, batch, **more: os.abort() if batch == {batch} else run(self, batch, **more); "
    return (sys.executable, "-c", code + "serve(sys.stdin, sys.stdout)")


@pytest.mark.parametrize("how", ["error", "crash at the large one", "crash at the small one"])
def test_contender_loses_only_the_batch_size_that_it_fails_at(tmp_path: Path, how: str) -> None:
    """Whether its worker answers an error and lives, or ends and is replaced."""
    onnx.save(faulty_models.picky(4), tmp_path / "fine.onnx")
    onnx.save(faulty_models.picky(1), tmp_path / "picky.onnx")
    np.savez(tmp_path / "in.npz", x=np.ones(4, np.float32))
    batch = 1 if how.endswith("small one") else 4
    victim = Entry(tmp_path / "picky.onnx") if how == "error" else Entry(tmp_path / "fine.onnx", command=dies_at(batch))
    plan = Plan(batch_sizes=(1, 4), rounds=6, block_ms=1, threads=1, timeout_s=60)
    entries = {"fine": Entry(tmp_path / "fine.onnx"), "victim": victim}
    contenders = run_rounds(entries, tmp_path / "in.npz", plan)[0]
    found = contenders["victim"]
    assert found.error is None
    assert found.failed.keys() == {batch}
    assert ("out of data bounds" if how == "error" else "signal 6") in found.failed[batch]
    assert str(found.failure).startswith(f"batch {batch}: ")
    assert found.batches == (5 - batch,)
    assert counts(found) == {batch: 0, 5 - batch: 6}
    assert found.first_call_ms > 0
    assert counts(contenders["fine"]) == {1: 6, 4: 6}
    assert [row.batch for row in rows(found, contenders["fine"], resolution=0)] == [5 - batch]
    assert workers() == []


def test_every_round_has_new_processes(run) -> None:
    seen: list[set[psutil.Process]] = []  # which are told apart by their start too, where a number is used again
    contenders = run(lambda _: seen.append(set(workers())))
    assert [len(processes) for processes in seen] == [len(NAMES)] * 6
    assert len(set.union(*seen)) == 6 * len(NAMES)
    for contender in contenders.values():
        assert contender.past_processor_s > 0


def test_process_is_kept_when_its_model_takes_long_to_load(run, monkeypatch) -> None:
    monkeypatch.setattr("gauntlet.race.contender.MAX_RESTART_S", 0.0)
    seen: list[set[int]] = []
    contenders = run(lambda _: seen.append({process.pid for process in workers()}))
    assert seen == seen[:1] * 6
    base = contenders[NAMES[0]]
    [wide, _] = rows(base, base, resolution=0.005)
    assert (wide.processes, wide.speedup_low, wide.speedup_high) == (1, np.exp(-ONE_PROCESS), np.exp(ONE_PROCESS))


def test_race_leaves_no_worker_when_it_is_interrupted(run) -> None:
    def interrupt(_: int) -> None:
        assert len(workers()) == len(NAMES)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(interrupt)
    assert workers() == []


def test_race_warms_up_and_calls_often_enough_when_a_block_is_shorter_than_a_call(run) -> None:
    for contender in run(lambda _: None).values():
        assert contender.calls_ms.keys() == {1, 2}
        for batch, blocks in contender.warm_up_blocks.items():
            assert WARM_UP_BLOCKS[0] <= blocks <= WARM_UP_BLOCKS[1]
            assert len(contender.calls_ms[batch]) >= 6 * 3


@pytest.mark.parametrize(("limit_s", "expected"), [(0.0, {1: 6}), (1e6, {1: 8, 2: 8}), (None, {1: 8, 2: 8})])
def test_race_without_time_has_the_first_batch_size_and_the_rounds_that_an_interval_needs(
    trained, tmp_path: Path, limit_s: float | None, expected: dict[int, int]
) -> None:
    np.savez(tmp_path / "inputs.npz", input=np.ones((2, 3, 32, 32), np.float32))
    least = least_rounds(CONFIDENCE)
    plan = Plan((1, 2), rounds=8, block_ms=1, threads=1, timeout_s=60, limit_s=limit_s, least_rounds=least)
    found, _ = run_rounds({"fp32": Entry(trained.path)}, tmp_path / "inputs.npz", plan)
    assert counts(found["fp32"]) == expected


@pytest.mark.parametrize("confidence", [0.9, CONFIDENCE, 0.98, 0.999])
def test_interval_is_finite_from_the_least_rounds_on(confidence: float) -> None:
    rounds = least_rounds(confidence)
    finite = [np.isfinite(median_shift_interval(np.arange(1, n + 1), confidence)).all() for n in (rounds - 1, rounds)]
    assert finite == [False, True]


@pytest.mark.skipif(not TASKS.exists(), reason="the system does not tell what a thread does")
@pytest.mark.parametrize("is_copy", [True, False])
def test_contender_leaves_the_processor_to_the_next_one_when_its_block_is_over(
    trained, tmp_path: Path, is_copy: bool
) -> None:
    """A pool of threads spins for tens of milliseconds after a call: the answer waits for that, or it is stopped."""

    def spent_ms(pid: int) -> float:
        return sum(int(t.read_text().split()[0]) for t in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e6

    np.savez(tmp_path / "inputs.npz", input=np.ones((2, 3, 32, 32), np.float32))
    with (
        WorkerTemplate(WORKER_COMMAND, ENGINE) as template,
        WorkerClient(template=template if is_copy else None) as worker,
    ):
        template.close()
        worker.load(trained.path, tmp_path / "inputs.npz", 2, 60)
        [process] = workers()
        worker.run(1, 20, 60)
        before = spent_ms(process.pid)
        time.sleep(0.1)
        assert spent_ms(process.pid) - before < 5
        assert worker.run_calls(1, 2, 60)["samples_ms"]


@given(st.integers(0, 9), st.integers(1, TURNS), st.integers(0, 99))
def test_every_contender_has_each_turn_once_and_the_second_ones_are_in_reverse(
    contenders: int, turns: int, seed: int
) -> None:
    order = _turns(contenders, turns, np.random.default_rng(seed))
    parts = [order[turn * contenders : (turn + 1) * contenders] for turn in range(turns)]
    assert len(order) == turns * contenders
    assert all(sorted(part) == [*range(contenders)] for part in parts)
    assert turns < 2 or parts[1] == parts[0][::-1]


def test_difference_is_found_when_something_else_slows_half_of_all_calls() -> None:
    random = np.random.default_rng(0)
    base, quicker = (Contender(name, Entry(Path()), worker=None) for name in ("base", "quicker"))  # type: ignore[arg-type]
    for contender, cost_ms in ((base, 1.0), (quicker, 0.95)):
        for series in (contender.round_medians_ms, contender.round_quartiles_ms, contender.calls_ms):
            series[1] = []
        for _ in range(16):
            slowed = np.where(random.random(40) < random.uniform(0.3, 0.7), random.uniform(1.2, 2, 40), 1)
            calls_ms = cost_ms * slowed * np.exp(0.02 * random.standard_normal(40))
            contender.add_round(1, calls_ms.tolist())
    [row] = rows(quicker, base, resolution=0)
    assert (row.verdict, row.calls) == ("faster", 16 * 40)
    assert row.speedup == pytest.approx(1 / 0.95, abs=0.02)
    for contender in (base, quicker):  # medians cannot tell it, and they are what is reported as the latency
        contender.round_quartiles_ms = contender.round_medians_ms
    [by_medians] = rows(quicker, base, resolution=0)
    assert (by_medians.verdict, by_medians.median_ms) == ("not resolved", row.median_ms)


def test_foreign_work_is_seen_when_another_process_is_busy() -> None:
    busy = [sys.executable, "-c", "from time import *\nend = monotonic() + 60\nwhile monotonic() < end: pass"]
    watch = LoadMonitor()
    with subprocess.Popen(busy) as other:
        try:
            end = monotonic() + 1
            while monotonic() < end:
                other.poll()
        finally:
            other.kill()
    assert watch.notes(0.0, (1,)).other_load_cores > 0.3
