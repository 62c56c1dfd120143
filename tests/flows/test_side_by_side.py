"""Candidates side by side: the same report as one after the other, whatever ends a candidate, a worker or the run."""

import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import needs
import psutil
import pytest
from harness import GAUNTLET, QUICK, journal, latest_report, quick_config, sets

from configs.runner import RunnerConfig
from configs.schema import PipelineConfig
from flows import side_by_side
from flows.record.home import Home
from gauntlet.core.run_report import RunReport

Run = Callable[[PipelineConfig], RunReport]
RACED = ("benchmark", "explain", "select", "confirm", "package")
CANDIDATES = ("optimize=[{kind: ort, level: basic}, {kind: ort, level: extended}]",)
CANDIDATES += ("quantize=[{kind: static}, {kind: dynamic, weights: s8}, {kind: static, activations: s8}]",)
PASSES = """
import os
import time
from pathlib import Path

import numpy as np
from onnx import numpy_helper


def keep(model):
    name = model.graph.output[0].name
    for node in model.graph.node:
        node.output[:] = ["before" if output == name else output for output in node.output]
    model.graph.initializer.append(numpy_helper.from_array(np.float32([-1e30]), "least"))
    model.graph.node.add(op_type="Max", name="max", input=["before", "least"], output=[name])
    return model


def spoil(model):
    for weight in model.graph.initializer:
        if weight.dims:
            weight.CopyFrom(numpy_helper.from_array(np.float32(1.5) * numpy_helper.to_array(weight), weight.name))
    return model


def die(model):
    os.kill(os.getppid(), 9)  # the worker: a pass runs in a process of its own


def pause(model):
    mark = Path(os.environ["PAUSED"])
    if not mark.exists():
        mark.touch()
        time.sleep(600)
    return keep(model)


def wait(model):
    Path(os.environ["WAITING"]).write_text(f"{os.getppid()} {os.getpid()} ")
    while True:
        time.sleep(0.05)
"""


@pytest.fixture
def passes(tmp_path: Path) -> Callable[..., str]:
    """Return a function that returns the setting of some of the passes above."""
    (tmp_path / "mine.py").write_text(PASSES)

    def setting(*names: str) -> str:
        parts = (f"{{kind: python, function: mine:{name}, code_folder: {tmp_path}}}" for name in names)
        return f"optimize=[{', '.join(parts)}]"

    return setting


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


def forget_candidates(home: Home) -> None:
    """Remove the results of all candidates' stages, so that they run again."""
    for path in home.results.glob("*.json"):
        if json.loads(path.read_text())["stage"] not in ("data", "train", "evaluate", "export", "normalize"):
            path.unlink()


@contextmanager
def dask_cluster() -> Iterator[str]:
    try:
        import distributed
        import prefect_dask  # noqa: F401
    except ImportError:
        needs.missing("Dask is not installed: pip install 'onnx-gauntlet[dask]'")
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        yield f"{{kind: dask, address: '{cluster.scheduler_address}'}}"


@contextmanager
def ray_cluster() -> Iterator[str]:
    try:
        import prefect_ray  # noqa: F401
    except ImportError:
        needs.missing("Ray is not installed: pip install 'onnx-gauntlet[ray]'")
    with pytest.MonkeyPatch.context() as environment:  # a class of pydantic's may bear the name of a test's module
        environment.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
        yield "{kind: ray, workers: 2}"


@contextmanager
def processes() -> Iterator[str]:
    yield "{kind: processes, workers: 2}"


@contextmanager
def threads() -> Iterator[str]:
    yield "{kind: threads, workers: 2}"


@pytest.mark.slow
@pytest.mark.parametrize("workers", [threads, processes, dask_cluster, ray_cluster])
def test_report_is_the_same_as_without_workers(run: Run, home: Home, workers: Callable[[], Any]) -> None:
    with workers() as setting:
        serial = run(quick_config(*CANDIDATES))
        assert serial.verdict == "passed", serial.reason
        forget_candidates(home)
        parallel = run(quick_config(*CANDIDATES, f"runner={setting}"))
    assert parallel.run_id != serial.run_id
    assert before_the_race(parallel) == before_the_race(serial)
    computed = [s for s in parallel.stages if s.candidate is not None and not s.cached]
    assert len(computed) > 10
    events = journal(home.runs / parallel.run_id)
    pids = {e["pid"] for e in events if e["op"] == "work_started" and e["candidate"] is not None}
    assert (pids == {os.getpid()}) == ("threads" in setting)
    alone = {e["pid"] for e in events if e["op"] == "work_started" and e["stage"] in ("benchmark", "confirm")}
    assert alone == {os.getpid()}
    assert not [*home.work.glob("*.progress")]
    works = [e for e in events if e["op"] in ("work_finished", "alone")]
    last = max(number for number, event in enumerate(works) if event.get("candidate"))
    assert last < [event["op"] for event in works].index("alone")  # the race begins behind all of them


@pytest.mark.slow
def test_gate_that_fails_stops_no_other_candidate(run: Run, passes: Callable[..., str]) -> None:
    quantize = "quantize=[{kind: dynamic, weights: s8}]"
    report = run(quick_config(passes("spoil", "keep"), quantize, "runner={kind: threads, workers: 3}"))
    assert report.verdict == "passed", report.reason
    by_name = {c.name: c for c in report.candidates}
    assert list(by_name) == ["fp32", "spoil", "keep", "dynamic-s8"]
    assert "optimize.accepted_passes" in by_name["spoil"].reason
    assert not by_name["spoil"].benchmark
    assert by_name["keep"].accuracy == by_name["fp32"].accuracy
    assert by_name["dynamic-s8"].benchmark


@pytest.mark.slow
def test_candidate_that_kills_its_process_is_dropped_and_the_others_go_on(run: Run, passes: Callable[..., str]) -> None:
    config = quick_config(passes("die", "keep"), CANDIDATES[1], "runner={kind: processes, workers: 2}")
    report = run(config)
    assert report.verdict == "passed", report.reason
    reasons = {c.name: c.reason for c in report.candidates}
    assert reasons["die"].startswith("optimize broke: optimize die: its process was killed 3 times")
    assert [c.name for c in report.candidates if c.accuracy is not None] == [name for name in reasons if name != "die"]


@pytest.mark.slow
def test_run_goes_on_when_the_pool_has_lost_the_thread_that_watches_it(
    run: Run, passes: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As seen once in many kills: the thread is gone, and with it every future that it would have ended."""
    config = quick_config(passes("pause"), CANDIDATES[1], "runner={kind: processes, workers: 2}")
    paused = tmp_path / "paused"
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
    report = run(config)
    ending.join()
    assert len(ended) == 1
    assert report.verdict == "passed", report.reason
    assert {c.name for c in report.candidates if c.accuracy is not None} == {c.name for c in report.candidates}
    assert "pause" in {c.name for c in report.candidates}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "number"), [("threads", signal.SIGTERM), ("processes", signal.SIGTERM), ("processes", signal.SIGKILL)]
)
def test_cancelling_ends_all_work(folder: Path, passes: Callable[..., str], kind: str, number: signal.Signals) -> None:
    waiting = folder / "waiting"
    settings = (*QUICK, passes("wait"), "quantize=[]", f"runner={{kind: {kind}, workers: 2}}")
    process = subprocess.Popen(
        [GAUNTLET, "run", "digits-small-cnn", *sets(*settings)],
        cwd=folder,
        env={**os.environ, "GAUNTLET_HOME": str(folder / ".gauntlet"), "WAITING": str(waiting)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 200
    while not (waiting.exists() and waiting.read_text().endswith(" ")):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    worker, graph_pass = map(psutil.Process, map(int, waiting.read_text().split()))
    process.send_signal(number)
    assert process.wait(timeout=100) == (143 if number == signal.SIGTERM else -signal.SIGKILL)
    ended = [worker, graph_pass] if number == signal.SIGTERM else [worker]  # a killed run's passes end at their limit
    psutil.wait_procs(ended, timeout=60)
    assert not [each for each in ended if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]
    if number == signal.SIGTERM:
        report = latest_report(Home(folder / ".gauntlet"))
        assert (report.verdict, report.reason) == ("failed", "cancelled")


@pytest.mark.slow
def test_worker_that_outlives_its_broken_pool_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that Python's pool was starting when it broke: the pool would wait for it for ever."""
    monkeypatch.setattr(side_by_side, "end_with_parent", partial(signal.signal, signal.SIGTERM, signal.SIG_IGN))
    workers = side_by_side.Workers(RunnerConfig(kind="processes", workers=2))
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
