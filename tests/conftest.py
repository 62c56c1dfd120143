"""What every test may use: one real trained and exported model a session, and workspaces."""

import os
import shutil
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import needs
import onnx
import psutil
import pytest
import workers
from hypothesis import HealthCheck, settings
from pydantic import ValidationError

from gauntlet.core.artifact import Artifact, Store
from gauntlet.core.errors import ConfigError
from gauntlet.core.kinds import removed
from gauntlet.core.report import Report
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.digits import Digits
from tasks.data import DataFacts, data
from tasks.export import ExportFacts
from tasks.export import export as to_onnx
from tasks.train import train as fit
from tasks.train.facts import TrainFacts

if TYPE_CHECKING:
    from playwright.sync_api import Browser

# Workers share the cores; threads that spin while they wait make training five times slower there.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
if workers.WORKER:
    shared = (os.cpu_count() or 1) // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, shared)))

workers.begin()

settings.register_profile(
    "gauntlet",
    derandomize=True,
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
settings.load_profile("gauntlet")


def _needs_removed(error: BaseException | None) -> bool:
    """Return whether a test failed because a folder with kinds was removed, as CI does with a copy."""
    while error is not None:
        if isinstance(error, ConfigError) and "which is not there. Fix: install" in str(error):
            return True
        if isinstance(error, ModuleNotFoundError) and (error.name or "").startswith(("frameworks.", "wings.")):
            return True
        if isinstance(error, ValidationError) and {e["type"] for e in error.errors()} & {"union_tag_invalid"}:
            return bool(removed("*"))
        error = error.__cause__
    return False


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None]:
    """Skip a test that needs a kind whose folder was removed."""
    try:
        return (yield)
    except (ModuleNotFoundError, ValidationError, ConfigError) as error:
        if _needs_removed(error):
            pytest.skip(f"it needs a kind that was removed: {error}")
        raise


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with files that have slow tests, so that no worker waits for another; those of a browser are nightly.

    One file begins the finished run that others share, and they come after those that need none.
    """
    for item in items:
        if item.get_closest_marker("browser"):
            item.add_marker("nightly")
    slow = {item.path for item in items if item.get_closest_marker("slow") or item.get_closest_marker("nightly")}
    with_run = dict.fromkeys(item.path for item in items if "finished_home" in getattr(item, "fixturenames", ()))
    first = next(iter(with_run), None)
    items.sort(key=lambda item: (item.path != first, item.path not in slow, item.path in with_run))


@dataclass(frozen=True)
class Trained:
    """The real stages data, train and export, run once: their reports, and the store with their artifacts."""

    store: Store
    data: Report[DataFacts]
    train: Report[TrainFacts]
    export: Report[ExportFacts]

    @property
    def artifacts(self) -> dict[str, Artifact]:
        """All of them: the splits, `source` (the PyTorch file), `golden`, `predictions` and `model` (ONNX)."""
        source = {"source": self.train.artifacts["model"]}
        return {**self.data.artifacts, **self.train.artifacts, **source, **self.export.artifacts}

    @property
    def model(self) -> Artifact:
        return self.artifacts["model"]

    @property
    def golden(self) -> Artifact:
        return self.artifacts["golden"]

    @property
    def test(self) -> Artifact:
        return self.artifacts["test"]

    @property
    def path(self) -> Path:
        """The ONNX file; copy it before changing it."""
        return self.store.path(self.model)

    def proto(self) -> onnx.ModelProto:
        """Return a fresh copy of the ONNX model."""
        return onnx.load(self.path)


def train_and_export(root: Path) -> None:
    """Run the stages and leave their reports in the folder."""
    from frameworks.torch.classifier_training import TorchTraining
    from frameworks.torch.torchscript import TorchScript

    store = Store(root / "store")

    def stage(name: str) -> Workspace:
        (root / name).mkdir()
        return Workspace(store, root / name)

    loaded = data(Digits(), stage("data"))
    config = TorchTraining(architecture="small-cnn", epochs=8, learning_rate=0.005)
    train = fit(config, stage("train"), splits=loaded.artifacts, signature=loaded.facts.signature)
    export = to_onnx(
        TorchScript(),
        stage("export"),
        model=train.artifacts["model"],
        signature=train.facts.signature,
        golden=train.artifacts["golden"],
    )
    for name, report in (("data", loaded), ("train", train), ("export", export)):
        (root / f"{name}.json").write_text(report.model_dump_json())


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    """Headless Chromium that starts no connection of its own."""
    path = needs.chromium()
    from playwright.sync_api import sync_playwright

    quiet = ("quic", "background-networking", "component-update", "sync", "gpu")
    with sync_playwright() as playwright:
        flags = ["--no-sandbox", "--no-first-run", *(f"--disable-{name}" for name in quiet)]
        browser = playwright.chromium.launch(executable_path=path, args=flags)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    pytest.importorskip("frameworks.torch")
    root = workers.made_once(tmp_path_factory, "trained", train_and_export)
    kinds = {"data": Report[DataFacts], "train": Report[TrainFacts], "export": Report[ExportFacts]}
    reports = {name: kind.model_validate_json((root / f"{name}.json").read_bytes()) for name, kind in kinds.items()}
    return Trained(Store(root / "store"), **reports)


@pytest.fixture
def workspace(tmp_path: Path) -> Callable[..., Workspace]:
    """Return a factory of workspaces, each with an empty folder; all share one store unless another one is given."""
    made: list[Workspace] = []

    def make(store: Store | None = None) -> Workspace:
        folder = tmp_path / f"work-{len(made)}"
        folder.mkdir()
        made.append(Workspace(store or Store(tmp_path / "store"), folder))
        return made[-1]

    return make


@pytest.fixture
def no_process_is_left() -> Iterator[None]:
    """Fails a test that leaves a process behind."""
    before = set(psutil.Process().children(recursive=True))  # a server of other tests may run all the while
    yield
    assert set(psutil.Process().children(recursive=True)) <= before


@pytest.fixture
def keep_model(workspace: Callable[..., Workspace]) -> Callable[..., tuple[Workspace, Artifact]]:
    """Return a function that puts a model into a store; it returns a workspace on that store, and the artifact."""

    def keep(proto: onnx.ModelProto | bytes, store: Store | None = None) -> tuple[Workspace, Artifact]:
        out = workspace(store)
        path = out.folder / "model.onnx"
        path.write_bytes(proto if isinstance(proto, bytes) else proto.SerializeToString())
        return workspace(out.store), out.store_file(path)

    return keep


@pytest.fixture(scope="session")
def packed(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle of the trained model, a `.zip`; copy it before changing it."""
    import bundles

    space = Workspace(trained.store, tmp_path_factory.mktemp("package"))
    done = bundles.pack(space, trained.model, trained.golden, report=bundles.digits_report(trained))
    done.raise_if_blocked()
    target = tmp_path_factory.mktemp("packed") / "digits.zip"
    shutil.copyfile(trained.store.path(done.artifacts["bundle"]), target)
    return target


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A private and a public key."""
    import bundles

    return bundles.make_keys(tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="session")
def signed(packed: Path, keys: tuple[Path, Path]) -> Path:
    """The same bundle, signed."""
    pytest.importorskip("wings.verification")
    from gauntlet.bundle.delivery import deliver

    target = packed.with_name("signed.zip")
    deliver(packed, target, keys[0])
    return target
