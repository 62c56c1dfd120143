"""An operator out of a shared library: exported by both exporters, run with the library, and missed without it."""

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import needs
import numpy as np
import onnx
import pytest
from calibrated_recipes import quantized
from torch_networks import NEGPOS, SIGNATURE, splits

from frameworks.torch.both_exporters import BothTorchExporters
from frameworks.torch.brought_network import TorchModel
from frameworks.torch.dynamo import Dynamo
from frameworks.torch.torchscript import TorchScript
from gauntlet.core.artifact import Artifact, sha256_of
from gauntlet.core.errors import ConfigError, StageError
from gauntlet.core.signature import OperatorLibrary, Signature
from gauntlet.core.user_code import UserFunction
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.golden import Golden
from gauntlet.runtime.operator_libraries import operator_libraries, with_operator_libraries
from gauntlet.runtime.session import open_session
from gauntlet.runtime.worker_client import WorkerClient
from tasks.export import ExportConfig, export
from tasks.numerics import NumericsConfig, numerics
from tasks.optimize import OptimizeConfig, optimize
from tasks.optimize.graph_pass import OrtGraph
from tasks.quantize.static import StaticInt8
from tasks.structure import StructureConfig, structure
from tasks.train import train
from wings.graph_passes.simplifiers import OnnxOptimizer, OnnxSim, OnnxSlim

pytestmark = pytest.mark.slow
LIBRARY = needs.operator_library()
Make = Callable[..., Workspace]


class Brought:
    """The network, brought once, and its models, exported once each."""

    def __init__(self, root: Path, out: Workspace) -> None:
        import torch

        made: dict[str, Callable[[], torch.nn.Module]] = {}
        self.folder, self.out = root / "user", out
        self.folder.mkdir()
        (self.folder / "parts.py").write_text(NEGPOS)
        exec(NEGPOS, made)
        torch.save(made["make"]().state_dict(), self.folder / "w.pt")
        config = TorchModel(
            factory="parts:make", code_folder=self.folder, weights=self.folder / "w.pt", input_sizes=((24, 20),)
        )
        self.splits = splits(out)
        self.source = train(config, out, splits=self.splits, signature=SIGNATURE)
        self.golden = self.source.artifacts["golden"]

    @property
    def torchscript(self) -> TorchScript:
        return TorchScript(custom_symbolics=UserFunction(function="parts:symbolics", code_folder=self.folder))

    @property
    def dynamo(self) -> Dynamo:
        return Dynamo(custom_translation_table=UserFunction(function="parts:translations", code_folder=self.folder))

    def export(self, out: Workspace, config: ExportConfig) -> Artifact:
        signature = self.source.facts.signature
        model = self.source.artifacts["model"]
        return export(config, out, model=model, signature=signature, golden=self.golden).artifacts["model"]


@pytest.fixture(scope="module")
def brought(tmp_path_factory: pytest.TempPathFactory) -> Brought:
    from gauntlet.core.artifact import Store

    root = tmp_path_factory.mktemp("operators")
    (root / "work").mkdir()
    return Brought(root, Workspace(Store(root / "store"), root / "work"))


@pytest.fixture(params=["torchscript", "dynamo"])
def config(request: pytest.FixtureRequest, brought: Brought) -> ExportConfig:
    return brought.torchscript if request.param == "torchscript" else brought.dynamo


@pytest.fixture
def library() -> Iterator[None]:
    with with_operator_libraries((LIBRARY,)):
        yield


def test_operator_is_named_by_the_structure_gate_when_its_library_is_missing(
    brought: Brought, config: ExportConfig, workspace: Make
) -> None:
    out = workspace(brought.out.store)
    report = structure(StructureConfig(), out, model=brought.export(out, config))
    failures = {check.name: check for check in report.failures}
    assert set(failures) == {"structure.runtime_errors", "structure.unregistered_operators"}
    assert failures["structure.unregistered_operators"].detail == "ai.onnx.contrib::NegPos"
    assert "operator_libraries" in failures["structure.unregistered_operators"].remedy
    with pytest.raises(StageError, match="NegPos"):
        numerics(NumericsConfig(), out, model=brought.export(out, config), golden=brought.golden)


def test_model_passes_the_gates_at_every_size_when_the_library_is_registered(
    brought: Brought, config: ExportConfig, workspace: Make, library: None
) -> None:
    out = workspace(brought.out.store)
    model = brought.export(out, config)
    assert not structure(StructureConfig(), out, model=model).failures
    report = numerics(NumericsConfig(), out, model=model, golden=brought.golden)
    assert not report.failures
    assert {row.data for row in report.facts.comparisons} == {"real", "random", "24x20"}
    assert max(row.max_abs_error for row in report.facts.comparisons) < 1e-5


def test_signature_names_the_library_by_content_when_the_model_needs_it(
    brought: Brought, workspace: Make, library: None, trained
) -> None:
    out = workspace(brought.out.store)
    proto = onnx.load(out.path(brought.export(out, brought.torchscript)))
    assert Signature.read(proto).operator_libraries == (
        OperatorLibrary(name=LIBRARY.name, sha256=sha256_of([LIBRARY])),
    )
    plain = export(
        TorchScript(),
        workspace(trained.store),
        model=trained.artifacts["source"],
        signature=trained.train.facts.signature,
        golden=trained.golden,
    )
    assert plain.artifacts == trained.export.artifacts  # which needs none


@pytest.mark.parametrize("graph_pass", [OrtGraph(), OnnxOptimizer(), OnnxSim(), OnnxSlim()], ids=lambda p: p.kind)
def test_candidate_keeps_the_operator_when_a_pass_rewrites_the_graph(
    brought: Brought, workspace: Make, library: None, graph_pass: OptimizeConfig
) -> None:
    out = workspace(brought.out.store)
    model = brought.export(out, brought.torchscript)
    optimized = optimize(graph_pass, out, model=model, golden=brought.golden).artifacts["model"]
    assert not structure(StructureConfig(), out, model=optimized).failures
    assert not numerics(NumericsConfig(), out, model=optimized, golden=brought.golden).failures
    assert Signature.read(onnx.load(out.path(optimized))).operator_libraries[0].name == LIBRARY.name


def test_candidate_is_calibrated_and_timed_when_the_library_is_registered(
    brought: Brought, workspace: Make, library: None
) -> None:
    out = workspace(brought.out.store)
    model = brought.export(out, brought.torchscript)
    report = quantized(StaticInt8(), out, model, brought.splits["calibration"], brought.splits["test"])
    smaller = report.artifacts["model"]
    assert not structure(StructureConfig(), out, model=smaller).failures
    np.savez(out.folder / "inputs.npz", **Golden.load(out.path(brought.golden)).real.inputs)
    with WorkerClient() as worker:  # a process of its own
        assert worker.load(out.path(smaller), out.folder / "inputs.npz", 1, 60)["load_ms"] > 0
        assert worker.run(1, 1, 60)["samples_ms"]


def test_libraries_are_forgotten_when_the_run_is_over(trained) -> None:
    with with_operator_libraries((LIBRARY,)), with_operator_libraries((LIBRARY,)):  # a second time does no harm
        assert operator_libraries() == (LIBRARY,)
        open_session(trained.path)
    assert operator_libraries() == ()


AGAIN = """
import sys
from pathlib import Path
import onnxruntime_extensions
from gauntlet.runtime.operator_libraries import with_operator_libraries
from gauntlet.runtime.session import open_session
with with_operator_libraries((Path(sys.argv[1]),)):
    for _ in range(3):
        open_session(Path(sys.argv[2]))
"""


def test_library_can_be_registered_again_when_its_last_session_is_gone(tmp_path: Path, trained) -> None:
    copy = shutil.copy(LIBRARY, tmp_path / "libmyops.so")  # unloaded and loaded again beside the first, it crashes
    done = subprocess.run(
        [sys.executable, "-c", AGAIN, copy, trained.path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_library_is_refused_when_it_is_missing_or_none(tmp_path: Path, trained) -> None:
    with (
        pytest.raises(ConfigError, match=r"operator_libraries: .*none.so: no such file"),
        with_operator_libraries((tmp_path / "none.so",)),
    ):
        pass
    (tmp_path / "text.so").write_text("hello")
    with (
        with_operator_libraries((tmp_path / "text.so",)),
        pytest.raises(StageError, match=r"operator_libraries: .*text.so cannot be"),
    ):
        open_session(trained.path)


def test_vote_leaves_the_verdict_to_the_structure_gate_when_the_runtime_loads_neither_model(
    brought: Brought, workspace: Make
) -> None:
    out = workspace(brought.out.store)
    config = BothTorchExporters(torchscript=brought.torchscript, dynamo=brought.dynamo)
    source = brought.source
    report = export(
        config, out, model=source.artifacts["model"], signature=source.facts.signature, golden=brought.golden
    )
    report.raise_if_blocked()
    (check,) = report.checks
    assert (check.passed, check.value, report.facts.cross_check.distances) == (False, None, ())
    assert "exporters not compared" in check.detail
    checked = structure(StructureConfig(), out, model=report.artifacts["model"])
    assert "structure.unregistered_operators" in {failure.name for failure in checked.failures}
