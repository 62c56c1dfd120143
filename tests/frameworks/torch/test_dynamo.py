"""PyTorch's newer exporter: same outputs, same bytes, named axes, and nothing of this machine in the file."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from torch_networks import BODIES, bring

from frameworks.torch.dynamo import Dynamo
from frameworks.torch.exporter import clear_export_errors
from frameworks.torch.first_divergence import first_divergence
from gauntlet.core.artifact import Artifact
from gauntlet.core.errors import StageError
from gauntlet.core.report import Report
from gauntlet.core.signature import Signature, TensorSpec
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.golden import Golden
from gauntlet.runtime.batched_inference import batched_inference
from gauntlet.runtime.session import open_session
from tasks.export import ExportFacts, export
from tasks.numerics import NumericsConfig, numerics
from tasks.structure import StructureConfig, structure

Make = Callable[..., Workspace]


def exported(trained, folder: Path, **config: object) -> tuple[Report[ExportFacts], Path]:
    folder.mkdir()
    report = export(
        Dynamo.model_validate(config),
        Workspace(trained.store, folder),
        model=trained.artifacts["source"],
        signature=trained.train.facts.signature,
        golden=trained.golden,
    )
    return report, trained.store.path(report.artifacts["model"])


@pytest.fixture(scope="module")
def model(trained, tmp_path_factory: pytest.TempPathFactory) -> tuple[Report[ExportFacts], Path]:
    return exported(trained, tmp_path_factory.mktemp("dynamo") / "work")


@pytest.mark.parametrize("batch", [1, 2, 3, 7, 64])
def test_export_answers_as_the_source_when_run_at_any_batch_size(trained, model, batch: int) -> None:
    golden = Golden.load(trained.store.path(trained.golden))
    session = open_session(model[1])
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
    assert Signature.read(onnx.load(path)) == trained.train.facts.signature


def test_export_is_the_same_file_without_folders_of_this_machine_when_repeated(trained, model, tmp_path: Path) -> None:
    report, path = model
    again, _ = exported(trained, tmp_path / "again")
    assert again.artifacts == report.artifacts
    content = path.read_bytes()
    assert b"site-packages" not in content
    assert str(Path.cwd()).encode() not in content
    assert [file.name for file in path.parent.iterdir()] == ["model.onnx"]  # and no .data beside it


@pytest.mark.parametrize("opset", [20])
def test_export_writes_the_opset_when_configured(trained, tmp_path: Path, opset: int) -> None:
    report, path = exported(trained, tmp_path / "work", opset=opset)
    assert report.facts.opset == onnx.load(path).opset_import[0].version == opset


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


def brought(
    folder: Path, out: Workspace, body: str, sizes: list[tuple[int, int]]
) -> tuple[Signature, dict[str, Artifact]]:
    report = bring(out, folder, body, input_sizes=sizes)
    return report.facts.signature, report.artifacts


@pytest.mark.slow
def test_export_is_refused_in_one_sentence_when_the_network_branches_on_values(
    tmp_path: Path, workspace: Make, capfd: pytest.CaptureFixture[str]
) -> None:
    signature, artifacts = brought(tmp_path / "user", workspace(), "branch_on_values", [])
    capfd.readouterr()
    with pytest.raises(StageError) as refusal:
        export(Dynamo(), workspace(), model=artifacts["model"], signature=signature, golden=artifacts["golden"])
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


@pytest.mark.parametrize("body", ["sound", "size_as_number"])
def test_export_answers_as_the_source_when_height_and_width_change(tmp_path: Path, workspace: Make, body: str) -> None:
    out = workspace()
    signature, artifacts = brought(tmp_path / "user", out, body, [(24, 20), (16, 40)])
    model = export(
        Dynamo(), workspace(), model=artifacts["model"], signature=signature, golden=artifacts["golden"]
    ).artifacts["model"]
    report = numerics(NumericsConfig(), workspace(), model=model, golden=artifacts["golden"])
    assert not report.failures
    assert {row.data for row in report.facts.comparisons} == {"real", "random", "24x20", "16x40"}
    inputs = structure(StructureConfig(), workspace(), model=model).facts.inputs
    assert inputs == {"input": "float[batch, 3, height, width]"}


def test_numerics_fail_and_name_the_size_when_dynamo_unrolls_a_loop_over_the_width(
    tmp_path: Path, workspace: Make
) -> None:
    assert "range" in BODIES["loop_over_size"]
    signature, artifacts = brought(tmp_path / "user", workspace(), "loop_over_size", [(16, 24)])
    model = export(
        Dynamo(), workspace(), model=artifacts["model"], signature=signature, golden=artifacts["golden"]
    ).artifacts["model"]
    report = numerics(NumericsConfig(), workspace(), model=model, golden=artifacts["golden"])
    assert "numerics.max_rel_error" in {check.name for check in report.failures}
    assert all(row.max_abs_error < 1e-5 for row in report.facts.comparisons if row.data in ("real", "random"))
    assert "silently wrong at 16x24" in report.failures[0].detail


@pytest.mark.parametrize("files", [["model.onnx"], ["model.onnx", "model.onnx.data"]], ids=["one", "two"])
def test_export_is_whole_when_the_weights_were_too_large_for_one_file(
    trained, model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: list[str]
) -> None:
    monkeypatch.setattr("frameworks.torch.dynamo.MAX_ONE_FILE_BYTES", 0)
    if len(files) == 2:  # the stage takes it for large too; else it writes it anew, in one file
        monkeypatch.setattr("gauntlet.onnx_model.model_file.MAX_ONE_FILE_BYTES", 0)
    _, path = exported(trained, tmp_path / "work")
    assert sorted(file.name for file in path.parent.iterdir()) == files
    case = Golden.load(trained.store.path(trained.golden)).real
    first, second = (batched_inference(open_session(file), case.inputs).run(7)["logits"] for file in (path, model[1]))
    assert np.array_equal(first, second)
