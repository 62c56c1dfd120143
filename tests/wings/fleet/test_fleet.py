"""Many models: broken ones stop nothing, a kill repeats nothing that was finished, and nothing is left behind."""

import argparse
import io
import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import onnx_text
import psutil
import pytest
import reported_runs
from harness import GAUNTLET, SHORT, journal, sets, until
from loaded_modules import modules_after
from prefect.exceptions import ParameterTypeError
from rich.console import Console

from flows.record.home import Home
from gauntlet.core.errors import ConfigError, GateFailed, StageError
from wings.fleet import fleet_command, fleet_flow
from wings.fleet.fleet_command import print_fleet, run_fleet
from wings.fleet.fleet_flow import NotAllPassed, _lost, fleet, result_of, run_processes
from wings.fleet.fleet_record import fleet_record, last_fleet
from wings.fleet.library.fleet_models import find_models
from wings.fleet.library.fleet_report import FleetReport, FleetResult

QUICK = (*SHORT, "quantize=[]", "optimize=[]")
BROKEN = FleetResult(model="broken.onnx", verdict="invalid", reason="broken.onnx: not an ONNX file, but text " * 9)


def write_models(folder: Path, count: int) -> list[str]:
    """Write so many small models, of which every fifth is broken; return the names of the broken ones."""
    folder.mkdir()
    text = "m (float[n,16] x) => (float[n,4] y) <float[16,4] w> { y = MatMul(x, w) }"
    for number in range(count):
        weights = {"w": np.full((16, 4), number + 1, np.float32)}
        onnx.save(onnx_text.model(text, weights), folder / f"m{number:02}.onnx")
    broken = [f"m{number:02}.onnx" for number in range(1, count, 5)]
    for name in broken:
        (folder / name).write_text("this is text")
    return broken


def events(home: Home) -> list[dict[str, object]]:
    written = sorted((home.root / "fleets").glob("*/journal.jsonl"))
    return [event for path in written for event in journal(path.parent)]


def finished(home: Home) -> list[str]:
    return [str(e["result"]["model"]) for e in events(home) if e["op"] == "finished"]  # type: ignore[index]


@pytest.mark.nightly
@pytest.mark.timeout(1200)
def test_fleet_that_is_killed_goes_on_and_names_each_model(prefect_server: str, tmp_path: Path) -> None:
    broken, home = write_models(tmp_path / "models", 4), Home(tmp_path / ".gauntlet")
    words = [GAUNTLET, "fleet", "models", "--workers", "2", *sets(*QUICK)]
    environment, nowhere = {**os.environ, "GAUNTLET_HOME": str(home.root)}, subprocess.DEVNULL
    process = subprocess.Popen(words, cwd=tmp_path, env=environment, stdout=nowhere, stderr=nowhere)
    until(lambda: process.poll() is not None or len(finished(home)) >= 2, 500)
    assert process.poll() is None
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = finished(home)
    psutil.wait_procs(children, timeout=60)
    assert not [child for child in children if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]

    environment |= {"COLUMNS": "80"}
    done = subprocess.run(
        words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 1, done.stdout + done.stderr
    passed = [name for name in finished(home) if name not in broken]
    assert sorted(passed) == [f"m{number:02}.onnx" for number in range(4) if number != 1]  # none twice
    assert finished(home)[: len(before)] == before
    done_before = len({*before} - {*broken})
    assert f"goes on; {done_before} of 4 models are done" in done.stdout
    assert "3 of 4 models passed" in done.stdout
    assert all(len(line) <= 80 for line in done.stdout.splitlines() if not line.startswith("Page:"))
    record = last_fleet(home, tmp_path / "models", QUICK)
    report = record.report()
    assert {result.model: result.verdict for result in report.results if result.verdict != "passed"} == dict.fromkeys(
        broken, "invalid"
    )
    for result in report.results:
        assert (result.winner == "fp32") == (result.verdict == "passed")
        assert result.run_id is None or (home.runs / result.run_id / "report.html").exists()
    memory = [int(str(e["rss_bytes"])) for e in events(home) if e["op"] == "finished"][len(before) :]
    assert memory[-1] < 1.2 * memory[0]
    assert (record.folder / "fleet.html").exists()


def test_fleet_is_continued_until_it_ends_unless_something_else_is_asked(tmp_path: Path) -> None:
    home, models = Home(tmp_path), tmp_path / "models"
    with fleet_record(home, models, ("a=1",), fresh=False) as first:
        first.finished("digest", BROKEN)
        with pytest.raises(ConfigError, match="at work on it in another process"):
            fleet_record(home, models, ("a=1",), fresh=False).__enter__()
    with fleet_record(home, models, ("a=1",), fresh=False) as again:
        assert again.folder == first.folder
        assert again.results() == {"digest": BROKEN}
        report = again.close((BROKEN,), 1.0)
    assert last_fleet(home, models, ("a=1",)).report() == report  # type: ignore[union-attr]
    for settings, fresh in ((("a=1",), False), (("a=2",), False), (("a=1",), True)):
        with fleet_record(home, models, settings, fresh=fresh) as other:
            assert other.folder != first.folder
            assert other.results() == {}


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder of three models; no process is started for any of them."""
    write_models(tmp_path / "models", 3)
    monkeypatch.setenv("GAUNTLET_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(fleet_flow, "run_processes", processes([]))
    return tmp_path / "models"


def processes(
    verdicts: list[str], while_at_work: Callable[[], object] = lambda: None, interrupted: bool = False
) -> Callable[..., None]:
    """Return what ends a fleet's processes: one with each verdict, and the others by a kill."""

    def run(waiting: list[str], start: object, finish: Callable[[str, object], None], workers: int) -> None:
        while_at_work()
        left = [*verdicts]
        for digest in waiting:
            if left:
                [record] = Home.find().root.glob("fleets/*/journal.jsonl")
                result = FleetResult(model=f"model {digest}", verdict=left.pop(0))  # type: ignore[arg-type]
                (record.parent / "models").mkdir(exist_ok=True)
                (record.parent / "models" / f"{digest[:16]}.json").write_text(result.model_dump_json())
            finish(digest, SimpleNamespace(exitcode=-signal.SIGKILL))
        if interrupted:
            raise KeyboardInterrupt

    return run


def test_fleet_that_goes_on_repeats_what_broke_and_keeps_the_verdicts_on_models(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_flow, "run_processes", processes(["passed", "failed"], interrupted=True))
    with pytest.raises(KeyboardInterrupt):
        fleet.fn(models)
    monkeypatch.setattr(fleet_flow, "run_processes", processes(["passed"]))
    with pytest.raises(NotAllPassed, match="1 of 3 models did not pass"):
        fleet.fn(models)
    assert [result.verdict for result in last_fleet(Home.find(), models, ()).report().results] == [  # type: ignore[union-attr]
        "passed",
        "failed",
        "passed",
    ]


def test_file_whose_name_is_not_utf_8_is_invalid_and_the_fleet_has_a_report(models: Path) -> None:
    Path(os.fsdecode(bytes(models) + b"/caf\xe9.onnx")).write_bytes(b"")
    with pytest.raises(NotAllPassed, match=r"caf\\xe9\.onnx"):
        fleet.fn(models)
    record = last_fleet(Home.find(), models, ())
    assert record is not None
    [result] = [result for result in record.report().results if result.verdict == "invalid"]
    assert (result.model, result.reason) == ("caf\\xe9.onnx", "its path is not UTF-8. Fix: rename it")
    assert "caf\\xe9.onnx" in (record.folder / "fleet.html").read_text()


def test_command_shows_its_own_fleet_where_a_newer_one_of_the_folder_is_at_work(
    models: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def start_another() -> None:
        with fleet_record(Home.find(), models, (), fresh=True) as record:
            record.folder.rename(record.folder.with_name("20991231-235959-fleet-ffff"))

    monkeypatch.setattr(fleet_flow, "fleet", fleet.fn)
    monkeypatch.setattr(fleet_flow, "run_processes", processes([], start_another))
    monkeypatch.setattr(fleet_command, "prefect_server", lambda *_, **__: nullcontext("http://127.0.0.1:1/api"))
    monkeypatch.setattr(fleet_command, "wait_for_prefect_events", lambda *_: None)
    assert run_fleet(argparse.Namespace(folder=str(models), set=[], workers=1, fresh=False)) == 1
    assert "0 of 3 models passed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("error", "verdict"), [(None, "passed"), (GateFailed("no"), "failed"), (StageError("no"), "broke")]
)
def test_result_is_that_of_the_run(error: GateFailed | StageError | None, verdict: str) -> None:
    stopped = {"verdict": "failed", "stopped_at": "structure"} if error else {"verdict": "passed"}
    run = reported_runs.run(**stopped, reason="structure.checker_errors: 1 must be == 0")
    result = result_of("m.onnx", run, error)
    assert result.verdict == verdict
    assert result.outcome == (f"{verdict} at structure" if error else "passed")
    assert ("must be == 0" in result.reason) == bool(error)


def test_table_of_long_names_fits_80_columns() -> None:
    long = FleetResult(
        model="a-folder/with-a-model/whose-name-does-not-end.onnx",
        verdict="passed",
        winner="static-u8s8-percentile99.99-reduce-range-repaired",
        speedup=11.72,
        speedup_low=1.68,
        speedup_high=1.75,
        quality=0.987,
        size_bytes=111_200_000,
    )
    failed = FleetResult(model="b.onnx", verdict="failed", stopped_at="normalize", reason="x: " + "y " * 200)
    report = FleetReport(
        fleet_id="f", folder="m", settings=(), started_at="", seconds=1, results=(long, failed, BROKEN)
    )
    text = io.StringIO()
    print_fleet(Console(file=text, width=80), report, Path("fleet.html"))
    lines = text.getvalue().splitlines()
    assert all(len(line) <= 80 for line in lines)
    told = " ".join(text.getvalue().split())
    for part in ("11.72x", "98.7 %", "111.2 MB", "invalid", "1 of 3 models passed", "Page: fleet.html"):
        assert part in told


def test_so_many_processes_run_at_a_time_and_none_is_left_when_interrupted() -> None:
    import multiprocessing

    context, most, done = multiprocessing.get_context("spawn"), 0, list[str]()
    started: list[multiprocessing.context.SpawnProcess] = []

    def start(name: str) -> multiprocessing.context.SpawnProcess:
        nonlocal most
        process = context.Process(target=time.sleep, args=(600 if name == "endless" else 0,))
        process.start()
        started.append(process)
        most = max(most, sum(each.is_alive() for each in started))
        return process

    def finish(name: str, _process: object) -> None:
        done.append(name)
        if name == "c":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_processes(["a", "endless", "b", "c", "never"], start, finish, 2)
    assert done == ["a", "b", "c"]
    assert most == 2
    assert not [process for process in started if process.is_alive()]


def test_model_whose_process_is_killed_broke_and_the_next_one_runs(tmp_path: Path) -> None:
    import multiprocessing

    write_models(tmp_path / "models", 1)
    [model], told = find_models(tmp_path / "models"), dict[str, str]()

    def start(name: str) -> multiprocessing.context.SpawnProcess:
        code = signal.SIGKILL if name == "large" else signal.SIGCHLD  # which is ignored
        process = multiprocessing.get_context("spawn").Process(target=signal.raise_signal, args=(code,))
        process.start()
        return process

    run_processes(["large", "next"], start, lambda name, p: told.update({name: _lost(model, p, tmp_path).reason}), 1)
    assert "was killed by signal 9; memory may be short" in told["large"]
    assert "ended with exit code 0" in told["next"]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, -1])
def test_fleet_without_workers_is_refused_instead_of_waiting_for_ever(workers: int) -> None:
    assert fleet.parameters.properties["workers"]["minimum"] == 1  # by the form of Prefect's page
    with pytest.raises(ParameterTypeError, match="workers"):
        fleet.validate_parameters({"folder": "models", "workers": workers})


def test_fleet_on_a_named_server_makes_a_home_for_its_user_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    write_models(tmp_path / "models", 1)
    monkeypatch.setenv("GAUNTLET_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("wings.fleet.fleet_flow.run_processes", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fleet.fn(tmp_path / "models")
    assert (tmp_path / "home").stat().st_mode & 0o777 == 0o700


def test_command_imports_prefect_only_when_its_address_is_known() -> None:
    assert "prefect" not in modules_after("import wings.fleet.fleet_command")
