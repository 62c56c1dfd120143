"""The flow of a worker: it fetches files from the shared store, races here, and leaves its rows in that store."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import faulty_models
import numpy as np
import onnx
import pytest

from flows.record.home import Home
from flows.record.locks import locked
from gauntlet.core.artifact import Artifact, Store, open_store
from gauntlet.core.errors import StageError
from gauntlet.datasets.golden import Golden, GoldenCase
from gauntlet.targets import OrtCpu
from tasks.benchmark import BenchmarkConfig
from wings.machines.library.remote import RemoteRace, plan_for
from wings.machines.race_flow import SHARED_STORE, RaceRequest, fetch, race

pytestmark = pytest.mark.slow
TARGET = OrtCpu(spinning=False, on="shelf")
CONFIG = BenchmarkConfig(
    targets=(OrtCpu(), TARGET), rounds=6, block_ms=1, threads=1, batch_sizes=(1,), restart_processes=False
)


def files(store: Store, folder: Path) -> tuple[Artifact, Artifact]:
    """Return a small model and its golden data, as a run has stored them."""
    samples = {"x": np.random.default_rng(0).standard_normal((3, 3, 16, 16), dtype=np.float32)}
    outputs = {"y": np.ones((3, 10))}
    onnx.save(faulty_models.cnn(), folder / "model.onnx")
    Golden({"real": GoldenCase(samples, outputs)}, outputs).save(folder / "golden.npz")
    return store.put(folder / "model.onnx"), store.put(folder / "golden.npz")


def request(store: Store, folder: Path, elsewhere: str = "/nowhere") -> RaceRequest:
    model, golden = files(store, folder)
    models = (("fp32", model), ("twin", model))
    return RaceRequest(store=elsewhere, target=TARGET, config=plan_for(CONFIG, TARGET), models=models, golden=golden)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """The home of the other machine."""
    monkeypatch.setenv("GAUNTLET_HOME", str(tmp_path / "there"))
    return Home(tmp_path / "there")


def test_race_leaves_rows_machine_and_control_in_the_shared_store(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = Store(tmp_path / "shared")
    monkeypatch.setenv(SHARED_STORE, str(shared.root))  # the run sees the store at another path
    state = race.fn(request(shared, tmp_path))
    assert state.is_completed()
    artifact = Artifact.model_validate_json(state.message or "")
    assert shared.is_intact(artifact)
    found = RemoteRace.model_validate_json(shared.path(artifact).read_bytes())
    assert (found.target, found.pool, found.failure) == ("ort-cpu-nospin-on-shelf", "shelf", None)
    assert [result.candidate for result in found.results] == ["fp32", "twin"]
    for result in found.results:
        assert [(row.target, row.batch) for row in result.rows] == [("ort-cpu-nospin-on-shelf", 1)]
        assert result.aa_deviation is not None
    assert [row.verdict for row in found.reference] == ["reference"]
    assert len(found.control) == 1
    assert found.machine.host
    assert home.store.is_intact(request(shared, tmp_path).models[0][1])  # fetched for the next race
    assert list(home.work.iterdir()) == []


def test_clean_up_that_the_race_waits_for_takes_nothing_of_it(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def behind_a_clean_up(path: Path, **options: Any) -> Iterator[int]:
        for left in home.work.glob("*"):
            shutil.rmtree(left)
        with locked(path, **options) as descriptor:
            yield descriptor

    monkeypatch.setattr("wings.machines.race_flow.locked", behind_a_clean_up)
    shared = Store(tmp_path / "shared")
    monkeypatch.setenv(SHARED_STORE, str(shared.root))
    assert race.fn(request(shared, tmp_path)).is_completed()


def test_race_reaches_an_object_store_by_its_address(home: Home, tmp_path: Path) -> None:
    address = f"file://{tmp_path}/shared"
    shared = open_store(tmp_path / "here", address)
    state = race.fn(request(shared, tmp_path, elsewhere=address))
    artifact = Artifact.model_validate_json(state.message or "")
    assert not (tmp_path / "here" / artifact.path).exists()
    assert RemoteRace.model_validate_json(shared.path(artifact).read_bytes()).machine is not None


def test_request_keeps_the_order_of_the_models_in_any_database(tmp_path: Path) -> None:
    asked = request(Store(tmp_path / "store"), tmp_path)
    assert RaceRequest.model_validate(asked.model_dump(mode="json")) == asked
    assert [name for name, _ in asked.model_dump(mode="json")["models"]] == ["fp32", "twin"]


def test_store_that_is_not_mounted_is_named_with_the_fix(home: Home, tmp_path: Path) -> None:
    asked = request(Store(tmp_path / "shared"), tmp_path)
    with pytest.raises(StageError, match=r"/nowhere/.*no such file on this machine.*gauntlet worker --store FOLDER"):
        race.fn(asked)
    assert list(home.work.iterdir()) == []


def test_home_of_another_machine_is_for_its_user_alone(home: Home, tmp_path: Path) -> None:
    with pytest.raises(StageError, match="no such file on this machine"):
        race.fn(request(Store(tmp_path / "shared"), tmp_path))
    assert home.root.stat().st_mode & 0o777 == 0o700


def test_file_of_several_parts_is_fetched_whole(tmp_path: Path) -> None:
    shared, own, folder = Store(tmp_path / "shared"), Store(tmp_path / "own"), tmp_path / "work"
    folder.mkdir()
    parts = [folder / name for name in ("model.onnx", "model.data")]
    for part in parts:
        part.write_bytes(part.name.encode())
    artifact = shared.put(*parts)
    fetch(artifact, shared, own, folder)
    assert own.is_intact(artifact)
    shutil.rmtree(shared.root)
    fetch(artifact, shared, own, folder)  # it is there


def test_damaged_file_is_not_raced(tmp_path: Path) -> None:
    shared, own, folder = Store(tmp_path / "shared"), Store(tmp_path / "own"), tmp_path / "work"
    folder.mkdir()
    (folder / "model.onnx").write_bytes(b"model")
    artifact = shared.put(folder / "model.onnx")
    shared.path(artifact).write_bytes(b"other")
    with pytest.raises(StageError, match="does not match its digest"):
        fetch(artifact, shared, own, folder)
    assert not own.path(artifact).exists()
