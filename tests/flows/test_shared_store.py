"""Machines that share an object store: the same digests as with a folder, and nothing done twice."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import GAUNTLET, QUICK, command, journal, latest_report, sets
from object_server import BUCKET, SECRET, ObjectServer, object_server

from flows.record.home import Home
from gauntlet.core.object_store import ObjectStore, open_store
from gauntlet.core.object_store_client import connect
from gauntlet.core.run_report import RunReport

ADDRESS = f"s3://{BUCKET}/shared"
BY_CLOCK = ("benchmark", "explain", "select", "confirm", "package")
RUN = ("run", "digits-small-cnn", *sets(*QUICK))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectServer]:
    with object_server(tmp_path_factory.mktemp("objects")) as server:
        yield server


@pytest.fixture(scope="module")
def machines(server: ObjectServer, prefect_server: str, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The folders of two machines; each has run the same after the other."""
    folders = [tmp_path_factory.mktemp(name) for name in ("first", "second")]
    for folder in folders:
        done = command(folder, *RUN, GAUNTLET_STORE=ADDRESS, **server.environment)
        assert done.returncode == 0, done.stdout + done.stderr
        assert SECRET not in done.stdout + done.stderr
    return folders


@pytest.fixture
def store(server: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    """The store as a third machine sees it."""
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    connect.cache_clear()
    third = open_store(tmp_path / "third", ADDRESS)
    assert isinstance(third, ObjectStore)
    yield third
    connect.cache_clear()


def report_of(folder: Path) -> RunReport:
    return latest_report(Home(folder / ".gauntlet"))


def digests(report: RunReport) -> dict[str, str]:
    return {
        f"{stage.stage} {stage.candidate} {name}": artifact.sha256
        for stage in report.stages
        if stage.stage not in BY_CLOCK
        for name, artifact in stage.artifacts.items()
    }


@pytest.mark.slow
def test_run_has_the_same_digests_with_a_folder_and_with_an_object_store(
    machines: list[Path], finished: RunReport
) -> None:
    assert len(digests(finished)) > 10
    assert [digests(report_of(folder)) for folder in machines] == [digests(finished)] * 2


@pytest.mark.slow
def test_second_machine_repeats_nothing_that_the_first_has_done(machines: list[Path]) -> None:
    stages = {stage.stage: stage.cached for stage in report_of(machines[1]).stages if stage.stage not in BY_CLOCK}
    assert stages == dict.fromkeys(stages, True)
    assert {"data", "train", "export", "quantize"} <= stages.keys()
    assert {stage.cached for stage in report_of(machines[0]).stages} == {False}


@pytest.mark.slow
def test_every_artifact_of_a_run_can_be_fetched_by_a_third_machine(machines: list[Path], store: ObjectStore) -> None:
    for folder in machines:
        for stage in report_of(folder).stages:
            for artifact in stage.artifacts.values():
                assert store.path(artifact).is_file()


@pytest.mark.slow
def test_mlflow_has_addresses_in_the_store_instead_of_second_copies(machines: list[Path], store: ObjectStore) -> None:
    links = [*(machines[0] / ".gauntlet" / "mlartifacts").rglob("artifacts/train/*/*")]
    assert links
    for link in links:
        content = json.loads(link.read_bytes())
        artifact = next(a for a in report_of(machines[0]).stage("train").artifacts.values() if a.sha256 == content["sha256"])
        assert content["uri"] == store.uri(artifact)


@pytest.mark.slow
def test_no_file_of_a_run_holds_the_credentials(machines: list[Path]) -> None:
    files = [file for folder in machines for file in folder.rglob("*") if file.is_file()]
    assert len(files) > 50
    assert [file for file in files if SECRET.encode() in file.read_bytes()] == []
    assert any(ADDRESS.encode() in file.read_bytes() for file in files)
