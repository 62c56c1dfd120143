"""What several test files need to run the product as a user does."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from configs.loader import load
from configs.schema import PipelineConfig
from flows.record.home import Home
from flows.record.report_files import read_report
from flows.servers.password import password_file
from gauntlet.core.kinds import kinds
from gauntlet.core.run_report import RunReport
from gauntlet.core.shipping import shipping_stages

if TYPE_CHECKING:
    from playwright.sync_api import Page

GAUNTLET = Path(sys.executable).with_name("gauntlet")
HIDDEN = dict.fromkeys(("PREFECT_API_URL", "PREFECT_API_AUTH_STRING", "PREFECT_HOME", "MLFLOW_TRACKING_URI"), "")
RACE = ("benchmark.batch_sizes=[1]", "benchmark.rounds=6", "benchmark.block_ms=5", "benchmark.restart_processes=false")
RACE += ("benchmark.session_variants=[]",)
FEW_SCENES = ("data.image_size=48", "data.digit_size=[16, 24]", "data.max_digits=3", "data.test_images=40")
FEW_SCENES += ("data.train_images=240", "data.validation_images=20", "data.calibration_images=20")
"""A race that takes a second; the number of processors decides nothing in it."""
WITHOUT_REPAIR = ("repair.enabled=false",) if "repair" in shipping_stages() else ()
"""The processor decides who needs a repair, which takes seconds."""
SHORT = (*RACE, "benchmark.block_ms=1", "benchmark.profile=false", "numerics.samples=8", *WITHOUT_REPAIR)
"""And nothing besides that takes long."""
QUICK = (*RACE, "numerics.samples=8", "train.epochs=6", *WITHOUT_REPAIR)
QUICK += () if "onnxslim" in kinds("pass") else ("optimize.1={kind: ort, level: basic}",)


def quick_config(*settings: str) -> PipelineConfig:
    return load("digits-small-cnn", (*QUICK, "benchmark.profile=false", *settings))


def command(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command line as a user does."""
    return subprocess.run(
        [GAUNTLET, *arguments],
        cwd=folder,
        env={**os.environ, "GAUNTLET_HOME": str(folder / ".gauntlet"), "COLUMNS": "200", **environment},
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )


def started_run(folder: Path, event: str, *settings: str, **environment: str) -> tuple[subprocess.Popen[bytes], Path]:
    """Start a run of the small network; return it, and its folder, once its journal has the event `OP STAGE`."""
    home = Home(folder / ".gauntlet")
    before = set(home.run_folders())
    process = subprocess.Popen(
        [GAUNTLET, "run", "digits-small-cnn", *sets(*QUICK, *settings)],
        cwd=folder,
        env={**os.environ, "GAUNTLET_HOME": str(home.root), **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        # Shells start what runs in the background with interruptions ignored, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline and process.poll() is None:
        for run in set(home.run_folders()) - before:
            events = journal(run) if (run / "journal.jsonl").exists() else []
            if event in {f"{e['op']} {e.get('stage')}" for e in events}:
                return process, run
        time.sleep(0.002)
    process.kill()
    raise AssertionError(f"{event} did not come; the run ended with {process.poll()}")


def called(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Call the command line in this process: to start another one takes seconds."""
    from flows.cli.main import main

    out, errors = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(errors):
        patch.chdir(folder)
        for name, value in {"GAUNTLET_HOME": str(folder / ".gauntlet"), "COLUMNS": "200", **environment}.items():
            patch.setenv(name, value)
        try:
            code = main(arguments)
        except SystemExit as error:  # argparse's
            code = int(str(error.code or 0))
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), errors.getvalue())


def prefect_account(home: Home) -> tuple[str, str]:
    """Return the name and the password of a home's own Prefect server."""
    name, secret = password_file(home).read_text().strip().split(":")
    return name, secret


def sign_in(page: "Page", home: Home) -> None:
    """Enter the password of a home on Prefect's page, which leads to the one that was asked for."""
    field = page.get_by_placeholder("admin:pass")
    field.fill(password_file(home).read_text().strip())
    field.press("Enter")


def until(ready: Callable[[], Any], seconds: float = 600) -> Any:
    """Wait for a result that is true."""
    deadline = time.monotonic() + seconds
    while not (result := ready()):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    return result


def sets(*settings: str) -> list[str]:
    return [word for setting in settings for word in ("--set", setting)]


def latest_report(home: Home) -> RunReport:
    folder = home.finished_run()
    assert folder is not None
    return read_report(folder / "report.json")


def json_lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line, parse_constant=int) for line in text.splitlines()]  # NaN is no JSON


def journal(folder: Path) -> list[dict[str, Any]]:
    *complete, _ = (folder / "journal.jsonl").read_text().split("\n")  # the last line may be half written
    return [json.loads(line) for line in complete]
