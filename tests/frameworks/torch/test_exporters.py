"""Both of PyTorch's exporters: same outputs, same bytes, named axes, and nothing of this machine in the file."""

import copy
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from torch_networks import bring

from frameworks.torch.dynamo import Dynamo
from frameworks.torch.exporter import clear_export_errors
from frameworks.torch.first_divergence import first_divergence
from frameworks.torch.torchscript import TorchScript
from gauntlet.core.errors import StageError
from gauntlet.core.report import Report
from gauntlet.core.signature import Signature, TensorSpec
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.golden import Golden
from gauntlet.runtime.batched_inference import batched_inference
from gauntlet.runtime.session import open_session, supported_ir_version
from tasks.export import ExportFacts, export
from tasks.export.base import Exporter
from tasks.numerics import NumericsConfig, NumericsFacts, numerics
from tasks.structure import StructureConfig, structure

pytestmark = pytest.mark.slow
Make = Callable[..., Workspace]
Exported = Callable[..., tuple[Report[ExportFacts], Path]]


@pytest.fixture(scope="module")
def exported(trained, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """Return a function that exports the trained network once more."""

    def run(exporter: Exporter) -> tuple[Report[ExportFacts], Path]:
        report = export(
            exporter,
            Workspace(trained.store, tmp_path_factory.mktemp("work")),
            model=trained.artifacts["source"],
            signature=trained.train.facts.signature,
            golden=trained.golden,
        )
        return report, trained.store.path(report.artifacts["model"])

    return run


@pytest.fixture(scope="module")
def model(exported: Exported) -> tuple[Report[ExportFacts], Path]:
    return exported(Dynamo())


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
def test_export_answers_as_the_source_when_run_at_any_batch_size(trained, model, exporter: str) -> None:
    golden = Golden.load(trained.store.path(trained.golden))
    session = open_session(model[1] if exporter == "dynamo" else trained.path)
    for batch in (1, 2, 3, 7, 64):
        for case in golden.cases.values():
            actual = batched_inference(session, case.inputs).run(batch)["logits"]
            assert actual.shape == case.outputs["logits"].shape
            np.testing.assert_allclose(actual, case.outputs["logits"], rtol=0, atol=1e-5)


def test_export_is_sound_and_carries_the_signature_when_read_back(trained, model, workspace: Make) -> None:
    report, path = model
    checked = structure(StructureConfig(), workspace(trained.store), model=report.artifacts["model"])
    assert not checked.failures
    assert checked.facts.inputs == {"input": "float[batch, 3, 32, 32]"}
    assert checked.facts.outputs == {"logits": "float[batch, 10]"}
    assert Signature.read(onnx.load(path)) == Signature.read(trained.proto()) == trained.train.facts.signature


def test_export_is_the_same_file_without_folders_of_this_machine_when_repeated(
    trained, model, exported: Exported
) -> None:
    report, path = model
    assert exported(Dynamo())[0].artifacts == report.artifacts
    content = path.read_bytes()
    assert b"site-packages" not in content
    assert str(Path.cwd()).encode() not in content
    assert [file.name for file in path.parent.iterdir()] == ["model.onnx"]  # and no .data beside it
    again, _ = exported(TorchScript())
    assert (again.artifacts, again.facts) == (trained.export.artifacts, trained.export.facts)


@pytest.mark.parametrize("exporter", [Dynamo(opset=20), TorchScript(opset=13)], ids=lambda each: each.kind)
def test_export_writes_the_opset_when_configured(exported: Exported, exporter: Exporter) -> None:
    report, path = exported(exporter)
    proto = onnx.load(path)
    assert report.facts.opset == proto.opset_import[0].version == exporter.opset
    assert report.facts.ir_version == proto.ir_version <= supported_ir_version()
    assert report.facts.nodes == len(proto.graph.node)
    assert report.facts.size_bytes == path.stat().st_size


@pytest.mark.parametrize(("conv", "module"), [(0, "1"), (1, "5"), (2, "9")])
def test_divergence_names_the_layer_when_one_weight_is_wrong(
    trained, model, tmp_path: Path, conv: int, module: str
) -> None:
    proto = onnx.load(model[1])
    node = [n for n in proto.graph.node if n.op_type == "Conv"][conv]
    tensor = next(t for t in proto.graph.initializer if t.name == node.input[1])
    values = numpy_helper.to_array(tensor).copy()
    values[0, 0, 1, 1] += 1
    tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    onnx.save(proto, tmp_path / "wrong.onnx")
    golden = Golden.load(trained.store.path(trained.golden))
    assert first_divergence(model[1], golden, 1e-4) is None
    # The convolution is fused with the batch normalization, so it is that module's output.
    assert f"(Conv, module '{module}', relative error" in str(first_divergence(tmp_path / "wrong.onnx", golden, 1e-4))


def test_export_is_refused_in_one_sentence_when_the_network_branches_on_values(
    tmp_path: Path, workspace: Make, capfd: pytest.CaptureFixture[str]
) -> None:
    source = bring(workspace(), tmp_path / "user", "branch_on_values")
    signature, made = source.facts.signature, source.artifacts
    capfd.readouterr()
    with pytest.raises(StageError) as refusal:
        export(Dynamo(), workspace(), model=made["model"], signature=signature, golden=made["golden"])
    message = str(refusal.value)
    line = next(
        n for n, text in enumerate((tmp_path / "user" / "nets.py").read_text().splitlines(), 1) if "if x" in text
    )
    assert message.startswith("dynamo cannot export the network: GuardOnDataDependentSymNode: Could not guard")
    reason, _, fix = message.partition(". Fix: ")
    assert reason.endswith(f"at nets.py:{line}")
    assert "export.custom_translation_table" in fix
    assert len(reason) < 400
    assert capfd.readouterr() == ("", "")  # the exporter itself prints whole graphs


def test_operator_without_a_translation_is_named_in_plain_words(tmp_path: Path) -> None:
    network = torch.nn.Sequential(torch.nn.Linear(8, 3), torch.nn.RReLU()).eval()
    arguments = {"model": network, "args": (torch.zeros(2, 8),), "f": tmp_path / "m.onnx", "opset_version": 18}
    signature = Signature(inputs=(TensorSpec(name="x", dtype="float32", shape=("n", 8)),), outputs=(), layout="none")
    with pytest.raises(StageError) as refusal, clear_export_errors("dynamo", "write it with LeakyReLU"):
        Dynamo().export(arguments, signature, {})
    words = r"dynamo cannot export the network: it has no translation of the operator aten\.rrelu\w*\. Fix: write it"
    assert re.match(words, str(refusal.value))


ATTENTION = torch.nn.Sequential(torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)).eval()
TOKENS = TensorSpec(name="x", dtype="float32", shape=("batch", 3, 8))
LIKE_TOKENS = Signature(task="arrays", inputs=(TOKENS,), outputs=(TOKENS.replace(name="y"),), layout="none")


def test_attention_is_exported_when_the_network_is_frozen(tmp_path: Path) -> None:
    network, x = copy.deepcopy(ATTENTION).requires_grad_(False), torch.randn(5, 3, 8)
    names = {"input_names": ["x"], "output_names": ["y"]}
    arguments = {"model": network, "args": (x[:2],), "f": tmp_path / "m.onnx", "opset_version": 18, **names}
    TorchScript().export(arguments, LIKE_TOKENS, {})
    (actual,) = open_session(tmp_path / "m.onnx").run(["y"], {"x": x.numpy()})
    np.testing.assert_allclose(actual, network(x).numpy(), rtol=0, atol=1e-5)


def test_attention_is_refused_with_the_way_out_when_it_was_traced_without_gradients(tmp_path: Path) -> None:
    with torch.no_grad():
        torch.jit.trace(ATTENTION, torch.randn(2, 3, 8)).save(tmp_path / "net.torchscript")
    with pytest.raises(StageError, match=r"Fix: call torch\.backends\.mha\.set_fastpath_enabled\(False\)"):
        TorchScript().write(tmp_path / "net.torchscript", LIKE_TOKENS, tmp_path / "m.onnx")


Judged = tuple[Report[ExportFacts], Report[NumericsFacts]]
Judge = Callable[..., Judged]


@pytest.fixture
def judge(tmp_path: Path, workspace: Make) -> Judge:
    """Return a function that brings a network of BODIES, exports it, and asks the numerics gate."""

    def run(
        exporter: Exporter, body: str, *sizes: tuple[int, int]
    ) -> tuple[Report[ExportFacts], Report[NumericsFacts]]:
        source = bring(workspace(), tmp_path / "user", body, input_sizes=list(sizes))
        signature, golden = source.facts.signature, source.artifacts["golden"]
        report = export(exporter, workspace(), model=source.artifacts["model"], signature=signature, golden=golden)
        report.raise_if_blocked()
        return report, numerics(NumericsConfig(), workspace(), model=report.artifacts["model"], golden=golden)

    return run


@pytest.mark.parametrize(
    ("exporter", "body"),
    [(Dynamo(), "sound"), (Dynamo(), "size_as_number"), (TorchScript(), "sound")],
    ids=["dynamo-sound", "dynamo-size", "torchscript-sound"],
)
def test_export_answers_as_the_source_when_height_and_width_change(
    judge: Judge, workspace: Make, exporter: Exporter, body: str
) -> None:
    report, judged = judge(exporter, body, (24, 20), (16, 40))
    assert not judged.failures
    assert {row.data for row in judged.facts.comparisons} == {"real", "random", "24x20", "16x40"}
    assert report.facts.traced_constants == ()
    inputs = structure(StructureConfig(), workspace(), model=report.artifacts["model"]).facts.inputs
    assert inputs == {"input": "float[batch, 3, height, width]"}


def test_numerics_fail_and_name_the_size_when_dynamo_unrolls_a_loop_over_the_width(judge: Judge) -> None:
    _, judged = judge(Dynamo(), "loop_over_size", (16, 24))
    assert "numerics.max_rel_error" in {check.name for check in judged.failures}
    assert all(row.max_abs_error < 1e-5 for row in judged.facts.comparisons if row.data in ("real", "random"))
    assert "silently wrong at 16x24" in judged.failures[0].detail


def test_numerics_fail_and_name_the_size_when_it_is_answered_silently_wrong(judge: Judge) -> None:
    report, judged = judge(TorchScript(), "size_as_number", (24, 16), (16, 40))
    assert "numerics.max_rel_error" in {failure.name for failure in judged.failures}
    assert not [c for c in judged.checks if c.name == "numerics.failed_batches" and not c.passed]  # it runs
    detail = judged.failures[0].detail
    assert "worst output 'logits', 16x40 sample" in detail
    assert "right at the data's size, and silently wrong at 16x40: one size is frozen into the graph" in detail
    assert "24x16" not in detail  # only the width is
    assert "remove the size from train.input_sizes" in judged.failures[0].remedy
    (message,) = report.facts.traced_constants
    assert message.startswith("nets.py:15: Converting a tensor to a Python integer")


def test_one_size_is_compared_when_no_other_is_promised(judge: Judge) -> None:
    report, judged = judge(TorchScript(), "size_as_number")
    assert not judged.failures
    assert {row.data for row in judged.facts.comparisons} == {"real", "random"}
    assert len(report.facts.traced_constants) == 1  # a warning all the same


def test_numerics_fail_when_the_branch_of_one_run_is_frozen(judge: Judge) -> None:
    report, judged = judge(TorchScript(), "branch_on_values")
    assert "numerics.max_rel_error" in {failure.name for failure in judged.failures}
    assert "Converting a tensor to a Python boolean" in report.facts.traced_constants[0]


@pytest.mark.parametrize("files", [["model.onnx"], ["model.onnx", "model.onnx.data"]], ids=["one", "two"])
def test_export_is_whole_when_the_weights_were_too_large_for_one_file(
    trained, model, exported: Exported, monkeypatch: pytest.MonkeyPatch, files: list[str]
) -> None:
    monkeypatch.setattr("frameworks.torch.dynamo.MAX_ONE_FILE_BYTES", 0)
    if len(files) == 2:  # the stage takes it for large too; else it writes it anew, in one file
        monkeypatch.setattr("gauntlet.onnx_model.model_file.MAX_ONE_FILE_BYTES", 0)
    _, path = exported(Dynamo())
    assert sorted(file.name for file in path.parent.iterdir()) == files
    case = Golden.load(trained.store.path(trained.golden)).real
    first, second = (batched_inference(open_session(file), case.inputs).run(7)["logits"] for file in (path, model[1]))
    assert np.array_equal(first, second)
