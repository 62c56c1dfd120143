"""Fixtures: a real Prefect server, and a home with one finished run, which all tests of flows share."""

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from harness import QUICK, command, latest_report, sets
from workers import made_once

from configs.schema import PipelineConfig
from flows.record.home import Home
from flows.servers import local_servers
from flows.servers.password import CLIENT
from gauntlet.core.run_report import RunReport

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient


@pytest.fixture(scope="session")
def prefect_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The API address of a real server, the same for all workers; flows that run in this process use it too."""
    home = Home(made_once(tmp_path_factory, "prefect", lambda _: None))
    os.environ.pop("PREFECT_API_URL", None)
    os.environ["PREFECT_HOME"] = str(home.prefect)
    os.environ["PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL"] = "CRITICAL"
    os.environ["PREFECT_SERVER_SERVICES_SCHEDULER_LOOP_SECONDS"] = "5"  # a minute by default: too long for a test
    os.environ["PREFECT_SERVER_SERVICES_FOREMAN_LOOP_SECONDS"] = "1"  # how soon it notices that a worker is silent
    with local_servers.prefect_server(home, 0) as url:
        from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

        with temporary_settings({PREFECT_API_URL: url, PREFECT_API_AUTH_STRING: os.environ[CLIENT]}):
            yield url
        from prefect.events.worker import EventsWorker
        from prefect.logging.handlers import APILogWorker

        for worker in (APILogWorker, EventsWorker):
            worker.drain_all(timeout=2)  # one of a server that is gone never ends


@pytest.fixture
def client(prefect_server: str, monkeypatch: pytest.MonkeyPatch) -> "Iterator[SyncPrefectClient]":
    """A client of that server, whose address commands that deploy know, too."""
    from prefect.client.orchestration import get_client

    monkeypatch.setenv("PREFECT_API_URL", prefect_server)
    with get_client(sync_client=True) as client:
        yield client


@pytest.fixture(scope="session")
def finished_home(prefect_server: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home in which the quick pipeline ran once, to its end."""

    def make(home: Path) -> None:
        done = command(home, "run", "digits-small-cnn", *sets(*QUICK))
        assert done.returncode == 0, done.stdout + done.stderr

    return made_once(tmp_path_factory, "finished", make)


@pytest.fixture
def finished(finished_home: Path) -> RunReport:
    """The report of that run."""
    return latest_report(Home(finished_home / ".gauntlet"))


@pytest.fixture
def folder(finished_home: Path, tmp_path: Path) -> Path:
    """A folder of this test alone whose home is a copy of that one."""
    shutil.copytree(finished_home / ".gauntlet", tmp_path / ".gauntlet")
    return tmp_path


@pytest.fixture
def home(finished_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """A copy of that home, of this test alone, as the home of this process."""
    root = tmp_path / "home"
    shutil.copytree(finished_home / ".gauntlet", root)
    for folder in Home(root).run_folders():
        shutil.rmtree(folder)
    (root / "mlflow.db").unlink()
    monkeypatch.setenv("GAUNTLET_HOME", str(root))
    return Home(root)


@pytest.fixture
def run(home: Home) -> Callable[..., RunReport]:
    """Runs the pipeline in this process and returns its report, whatever the verdict."""
    from flows.pipeline import pipeline
    from gauntlet.core.errors import PipelineError

    def run_it(config: PipelineConfig, *, fresh: bool = False, minutes: float | None = None) -> RunReport:
        with contextlib.suppress(PipelineError):
            pipeline(config, fresh=fresh, minutes=minutes)
        return latest_report(home)

    return run_it
