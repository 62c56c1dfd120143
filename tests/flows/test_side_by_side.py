"""Candidates side by side: the same report as one after the other, whatever ends a candidate, a worker or the run."""

import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from fake_runs import Seam, candidates, require_same_record, waiting_run
from fake_stages import die, pause
from harness import journal, latest_report, quick_config, started_run, until

from configs.runner import LocalRunner
from configs.schema import PipelineConfig
from flows import side_by_side
from flows.record.home import Home
from gauntlet.core.run_report import RunReport

pytestmark = pytest.mark.slow
Run = Callable[[PipelineConfig], RunReport]

PASS = """
import os
import time
from pathlib import Path


def wait(model):
    Path(os.environ["WAITING"]).write_text(f"{os.getppid()} {os.getpid()} ")
    while True:
        time.sleep(0.05)
"""


RACED = ("benchmark", "explain", "select", "package")
CANDIDATES = ("optimize=[{kind: ort, level: basic}, {kind: ort, level: extended}]",)
CANDIDATES += ("quantize=[{kind: static}, {kind: dynamic, weights: s8}, {kind: static, activations: s8}]",)


def before_the_race(report: RunReport) -> dict[str, Any]:
    """Return everything that a report says, in its order, but for times and what the race decides."""
    kept = report.model_dump(mode="json", include={"stages", "candidates", "config", "verdict", "metric"})
    kept["config"].pop("runner")
    kept["stages"] = [entry for entry in kept["stages"] if entry["stage"] not in RACED]
    for entry in kept["stages"]:
        for name in ("seconds", "peak_rss_bytes", "cached"):
            entry.pop(name)
    keep = ("name", "parent", "accuracy", "sqnr_db", "size_bytes", "artifact")
    kept["candidates"] = [{name: candidate[name] for name in keep} for candidate in kept["candidates"]]
    return kept


@pytest.mark.nightly
def test_report_is_the_same_as_without_workers(run: Run, home: Home) -> None:
    serial = run(quick_config(*CANDIDATES))
    assert serial.verdict == "passed", serial.reason
    for path in home.results.glob("*.json"):  # the candidates' stages run again
        if json.loads(path.read_text())["report"]["stage"] not in ("data", "train", "evaluate", "export", "normalize"):
            path.unlink()
    parallel = run(quick_config(*CANDIDATES, "runner={kind: processes, workers: 2}"))
    assert parallel.run_id != serial.run_id
    assert before_the_race(parallel) == before_the_race(serial)
    computed = [s for s in parallel.stages if s.candidate is not None and not s.cached]
    assert len(computed) > 10
    events = journal(home.runs / parallel.run_id)
    pids = {e["pid"] for e in events if e["op"] == "work_started" and e["candidate"] is not None}
    assert pids != {os.getpid()}
    alone = {e["pid"] for e in events if e["op"] == "work_started" and e["stage"] in ("benchmark", "select")}
    assert alone == {os.getpid()}
    assert not [*home.work.glob("*.progress")]
    works = [e for e in events if e["op"] in ("work_finished", "alone")]
    last = max(number for number, event in enumerate(works) if event.get("candidate"))
    assert last < [event["op"] for event in works].index("alone")  # the race begins behind all of them


def test_record_is_in_the_order_of_the_code_and_a_gate_that_fails_stops_no_other_candidate(seam: Seam) -> None:
    require_same_record(seam, PipelineConfig(runner=LocalRunner(workers=3)))


@pytest.mark.parametrize(("faults", "is_lost"), [(2, False), (99, True)])
def test_work_is_asked_for_again_when_the_scheduler_fails(
    seam: Seam, monkeypatch: pytest.MonkeyPatch, faults: int, is_lost: bool
) -> None:
    """As seen with Dask on a busy machine: a call of Prefect's own ended after its time, without a result."""
    wait, calls = side_by_side.Workers._wait, list[object]()

    def busy(workers: side_by_side.Workers, future: Any, reader: Any) -> Any:
        state = wait(workers, future, reader)
        calls.append(state)
        if len(calls) <= faults:
            raise UnboundLocalError("no result")
        return state

    monkeypatch.setattr(side_by_side.Workers, "_wait", busy)
    config = PipelineConfig(runner=LocalRunner(workers=2))
    reason = seam(lambda line: candidates(line, config), config).candidates["good"].reason
    assert ("the worker was lost: UnboundLocalError: no result" in reason) == is_lost


@pytest.mark.nightly
def test_candidate_that_kills_its_process_is_dropped_and_the_others_go_on(seam: Seam) -> None:
    config = PipelineConfig(runner=LocalRunner(kind="processes", workers=2))
    run = seam(lambda line: candidates(line, config, ("doomed", die, 1)), config)
    assert run.candidates["doomed"].reason.startswith("die broke: its process was killed 3 times")
    assert [entry.candidate for entry in run.stages] == [None, "worse", "good", "better", None]


@pytest.mark.nightly
def test_run_goes_on_when_the_pool_has_lost_the_thread_that_watches_it(
    seam: Seam, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As seen once in many kills: the thread is gone, and with it every future that it would have ended."""
    config, paused = PipelineConfig(runner=LocalRunner(kind="processes", workers=2)), tmp_path / "paused"
    monkeypatch.setenv("PAUSED", str(paused))
    ended: list[str] = []

    def end_watcher() -> None:
        while not paused.exists():
            time.sleep(0.05)
        (watcher,) = (one for one in threading.enumerate() if type(one).__name__ == "_ExecutorManagerThread")
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(watcher.ident or 0), ctypes.py_object(SystemExit))
        watcher.thread_wakeup.wakeup()  # type: ignore[attr-defined]
        watcher.join()
        ended.append(watcher.name)

    ending = threading.Thread(target=end_watcher)
    ending.start()
    run = seam(lambda line: candidates(line, config, ("paused", pause, 1)), config)
    ending.join()
    assert len(ended) == 1
    assert [entry.candidate for entry in run.stages] == [None, "paused", "worse", "good", "better", None]


@pytest.mark.parametrize(
    ("kind", "number"),
    [("threads", signal.SIGTERM), pytest.param("processes", signal.SIGKILL, marks=pytest.mark.nightly)],
)
def test_signal_ends_all_work_of_stages(prefect_server: str, tmp_path: Path, kind: str, number: signal.Signals) -> None:
    process, worker = waiting_run(tmp_path, "make", runner={"kind": kind, "workers": 2})
    process.send_signal(number)
    assert process.wait(timeout=300) == (143 if number == signal.SIGTERM else -signal.SIGKILL)
    psutil.wait_procs([psutil.Process(worker)] if psutil.pid_exists(worker) else [], timeout=60)
    assert not psutil.pid_exists(worker)
    if number == signal.SIGTERM:
        report = latest_report(Home(tmp_path))
        assert (report.verdict, report.reason) == ("cancelled", "cancelled")


@pytest.mark.nightly
def test_cancelling_ends_a_graph_pass_with_its_worker(folder: Path) -> None:
    """The pass runs in a process of its own, in a session of its own."""
    (folder / "mine.py").write_text(PASS)
    waiting, own = folder / "waiting", f"{{kind: python, function: mine:wait, code_folder: {folder}}}"
    settings = (f"optimize=[{own}]", "quantize=[]", "runner={kind: processes, workers: 2}")
    process, _ = started_run(folder, "work_started optimize", *settings, WAITING=str(waiting))
    until(lambda: waiting.exists() and waiting.read_text().endswith(" "))
    both = [psutil.Process(int(word)) for word in waiting.read_text().split()]
    process.terminate()
    assert process.wait(timeout=300) == 143
    psutil.wait_procs(both, timeout=60)
    assert not [each for each in both if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]
    report = latest_report(Home(folder / ".gauntlet"))
    assert (report.verdict, report.reason) == ("cancelled", "cancelled")


def test_worker_that_outlives_its_broken_pool_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that Python's pool was starting when it broke: the pool would wait for it for ever."""
    monkeypatch.setattr(side_by_side, "end_with_parent", partial(signal.signal, signal.SIGTERM, signal.SIG_IGN))
    workers = side_by_side.Workers(LocalRunner(kind="processes", workers=2))
    executor: Any = workers.runner._executor  # type: ignore[attr-defined]
    busy, deaf = executor.submit(time.sleep, 600), executor.submit(os.getpid).result()
    [killed] = set(executor._processes) - {deaf}
    os.kill(killed, signal.SIGKILL)
    with pytest.raises(BrokenProcessPool):
        busy.result()
    assert psutil.pid_exists(deaf)
    workers._restart(0)
    assert not psutil.pid_exists(deaf)
    assert workers.runner._executor.submit(os.getpid).result() != deaf  # type: ignore[attr-defined]
    workers.cancel()
    workers.close()


def test_pool_that_breaks_while_work_is_sent_to_it_is_ended() -> None:
    """Python 3.11.2, Debian's, would write to its dead processes for ever."""
    workers = side_by_side.Workers(LocalRunner(kind="processes", workers=2))
    executor: Any = workers.runner._executor  # type: ignore[attr-defined]
    busy = [executor.submit(time.sleep, 600) for _ in range(2)]
    executor.submit(len, bytes(1 << 24))  # more than a pipe holds
    time.sleep(1)
    for process in executor._processes:
        os.kill(process, signal.SIGKILL)
    with pytest.raises(BrokenProcessPool):
        busy[0].result()
    workers._restart(0)
    assert workers.runner._executor.submit(len, b"12").result() == 2  # type: ignore[attr-defined]
    workers.cancel()
    workers.close()


WITH_A_KILLED_WORKER = """
from configs.runner import LocalRunner
from flows import side_by_side
runner = side_by_side.start_task_runner(LocalRunner(kind="processes", workers=1))
runner._subprocess_message_queue._wlock.acquire()  # as a worker that is killed while it sends a message
runner.__exit__(None, None, None)
"""


def test_run_exits_though_a_worker_was_killed_while_it_sent_a_message() -> None:
    subprocess.run([sys.executable, "-c", WITH_A_KILLED_WORKER], check=True, timeout=120)
