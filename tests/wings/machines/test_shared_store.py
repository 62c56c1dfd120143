"""Machines that share an object store: the same digests as with a folder, and nothing done twice."""

import contextlib
import json
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import onnx
import onnx_text
import pytest
from harness import SHORT, latest_report, quick_config, until
from object_server import BUCKET, SECRET, ObjectServer, machine

from configs.loader import load
from configs.schema import PipelineConfig
from flows.cli.main import main
from flows.record.home import Home
from flows.record.run import Run
from flows.stage import Line
from gauntlet.core.candidate import Candidate
from gauntlet.core.errors import PipelineError, StageError, StoreRefused, StoreUnavailable
from gauntlet.core.run_report import RunReport
from wings.machines.library.object_store import ObjectStore
from wings.machines.library.shared_cleanup import plan_shared_cleanup

from .conftest import reached

ADDRESS = f"s3://{BUCKET}/shared"
BY_CLOCK = ("benchmark", "explain", "select", "package")
QUICK = (*SHORT, "quantize=[{kind: dynamic, weights: s8}]", "optimize=[]")


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> PipelineConfig:
    model = tmp_path_factory.mktemp("model") / "linear.onnx"
    text = "m (float[n,16] x) => (float[n,4] y) <float[16,4] w> { y = MatMul(x, w) }"
    weights = {"w": np.random.default_rng(1).standard_normal((16, 4), np.float32)}
    onnx.save(onnx_text.model(text, weights), model)
    synthetic = f"data={{kind: synthetic, model: {model}, samples: 30}}"
    return load("bring-your-own-onnx", (*QUICK, f"train.model={model}", synthetic))


def run_on(home: Path, store: str, config: PipelineConfig) -> RunReport:
    """Run the pipeline in this process, with a home and a store of its own."""
    from flows.pipeline import pipeline

    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("GAUNTLET_HOME", str(home))
        environment.setenv("GAUNTLET_STORE", store)
        with contextlib.suppress(PipelineError):
            pipeline(config)
    return latest_report(Home(home))


@pytest.fixture(scope="module")
def homes(
    shared_server: ObjectServer, prefect_server: str, config: PipelineConfig, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """The homes of three machines that have run the same: one with a folder, and two that share a store."""
    homes = {name: tmp_path_factory.mktemp(name) for name in ("alone", "first", "second")}
    with pytest.MonkeyPatch.context() as environment, contextlib.contextmanager(reached)(shared_server, environment):
        for name, home in homes.items():
            report = run_on(home, "" if name == "alone" else ADDRESS, config)
            assert report.verdict == "passed", report.reason
    return homes


@pytest.fixture
def store(server: ObjectServer, tmp_path: Path) -> ObjectStore:
    """The store as one more machine sees it."""
    return machine(ADDRESS, tmp_path / "another")


def digests(home: Path) -> dict[str, str]:
    return {
        f"{stage.stage} {stage.candidate} {name}": artifact.sha256
        for stage in latest_report(Home(home)).stages
        if stage.stage not in BY_CLOCK
        for name, artifact in stage.artifacts.items()
    }


@pytest.mark.slow
def test_run_has_the_same_digests_with_a_folder_and_with_an_object_store(homes: dict[str, Path]) -> None:
    alone, first, second = (digests(home) for home in homes.values())
    assert {"train None model", "quantize dynamic-s8 model"} <= alone.keys()
    assert alone == first == second


@pytest.mark.slow
def test_second_machine_repeats_nothing_that_the_first_has_done(homes: dict[str, Path]) -> None:
    stages = {name: latest_report(Home(homes[name])).stages for name in ("first", "second")}
    cached = {name: {each.cached for each in found if each.stage not in BY_CLOCK} for name, found in stages.items()}
    assert cached == {"first": {False}, "second": {True}}


@pytest.mark.slow
def test_another_machine_can_fetch_every_artifact_of_a_run(homes: dict[str, Path], store: ObjectStore) -> None:
    artifacts = [a for stage in latest_report(Home(homes["first"])).stages for a in stage.artifacts.values()]
    assert artifacts
    for artifact in artifacts:
        assert store.path(artifact).read_bytes() == (homes["first"] / "store" / artifact.path).read_bytes()


@pytest.mark.slow
def test_mlflow_has_addresses_in_the_store_instead_of_second_copies(homes: dict[str, Path], store: ObjectStore) -> None:
    trained = latest_report(Home(homes["first"])).stage("train")
    files = [*homes["first"].glob("mlartifacts/**/artifacts/train/golden/*")]
    assert [json.loads(file.read_bytes())["uri"] for file in files] == [store.uri(trained.artifacts["golden"])]


@pytest.mark.slow
def test_no_file_of_a_run_holds_the_credentials(homes: dict[str, Path]) -> None:
    files = [file for name in ("first", "second") for file in homes[name].rglob("*") if file.is_file()]
    assert [file for file in files if SECRET.encode() in file.read_bytes()] == []
    assert any(ADDRESS.encode() in file.read_bytes() for file in files)  # of MLflow's links


@pytest.mark.slow
def test_clean_up_removes_what_the_runs_of_no_machine_need(
    homes: dict[str, Path], store: ObjectStore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GAUNTLET_STORE", ADDRESS)
    monkeypatch.setenv("GAUNTLET_HOME", str(homes["second"]))
    (store.root.parent / "m").write_bytes(b"of no run")
    stray = store.put(store.root.parent / "m")
    store.publish("results/0123.json", "{}")
    with store.in_use("elsewhere"):
        assert main(["clean", "--shared"]) == 2
    assert f"{ADDRESS}: a run is in progress (elsewhere); clean when it has ended" in capsys.readouterr().err
    assert main(["clean", "--shared", "--dry-run"]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"{ADDRESS}: would remove 0 runs, 1 result, 1 artifact, 0 leftovers: 11 B")
    assert main(["clean", "--shared"]) == 0
    assert plan_shared_cleanup(store).objects == ()
    assert f"store/{stray.path}" not in {one["path"] for one in store.objects("store")}
    for stage in latest_report(Home(homes["first"])).stages:
        for artifact in stage.artifacts.values():
            assert f"store/{artifact.path}" in {one["path"] for one in store.objects("store")}
    assert main(["clean", "--shared", "--keep-runs", "0"]) == 0
    assert "removed 2 runs, " in capsys.readouterr().out
    assert [store.objects(kind) for kind in ("store", "results", "runs")] == [[], [], []]


def test_clean_up_removes_the_parts_of_uploads_that_were_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import obstore

    address = (tmp_path / "mounted here").as_uri()
    monkeypatch.setenv("GAUNTLET_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("GAUNTLET_STORE", address)
    store = machine(address, tmp_path / "home" / "store")
    uploads = [obstore.open_writer(store.client, f"store/ab/{name}/m", buffer_size=1) for name in ("killed", "at work")]
    for upload in uploads:
        upload.write(bytes(1000))
    killed, at_work = (tmp_path / "mounted here" / "store" / "ab" / name / "m#1" for name in ("killed", "at work"))
    until(lambda: [part.exists() and part.stat().st_size for part in (killed, at_work)] == [1000, 1000])
    os.utime(killed, (0, 0))
    assert main(["clean", "--shared"]) == 0
    assert "1 leftover: 1.0 kB" in capsys.readouterr().out
    assert (killed.exists(), at_work.exists()) == (False, True)


def test_clean_up_without_a_shared_store_names_the_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GAUNTLET_HOME", str(tmp_path))
    monkeypatch.delenv("GAUNTLET_STORE", raising=False)
    assert main(["clean", "--shared"]) == 2
    assert "there is no shared store. Fix: set GAUNTLET_STORE" in capsys.readouterr().err


@pytest.mark.parametrize("lost", [StoreUnavailable("lost"), StoreRefused("lost")])
@pytest.mark.parametrize(
    "guard", [lambda line: line.attempt(Candidate("static", "fp32", "fp32")), lambda line: line.continue_on_failure()]
)
def test_lost_store_ends_the_run_and_no_candidate_is_blamed(
    tmp_path: Path, guard: Callable[[Line], AbstractContextManager[object]], lost: Exception
) -> None:
    line = Line(Run("one", Home(tmp_path), quick_config()))
    with pytest.raises(type(lost), match="lost"), guard(line):
        raise lost
    assert "rejected" not in {candidate.status for candidate in line.run.candidates.values()}
    with guard(line):
        raise StageError("this stage alone")
