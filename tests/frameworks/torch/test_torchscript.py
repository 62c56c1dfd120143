"""The exporter: same outputs, same bytes, and a model that describes itself."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from torch_networks import bring

from frameworks.torch.torchscript import TorchScript
from gauntlet.core.report import Report
from gauntlet.core.signature import Signature
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.golden import Golden
from gauntlet.runtime.batched_inference import batched_inference
from gauntlet.runtime.session import open_session, supported_ir_version
from tasks.export import ExportFacts, export
from tasks.numerics import NumericsConfig, numerics

Make = Callable[..., Workspace]


@pytest.mark.parametrize("batch", [1, 2, 3, 7, 64])
def test_export_answers_as_the_source_when_run_at_any_batch_size(trained, batch: int) -> None:
    golden = Golden.load(trained.store.path(trained.golden))
    session = open_session(trained.path)
    for case in golden.cases.values():
        actual = batched_inference(session, case.inputs).run(batch)["logits"]
        assert actual.shape == case.outputs["logits"].shape
        np.testing.assert_allclose(actual, case.outputs["logits"], rtol=0, atol=1e-5)


def test_export_carries_the_signature_when_read_back(trained) -> None:
    signature = Signature.read(trained.proto())
    data = trained.data.facts.signature
    assert signature == data.replace(outputs=signature.outputs, primary_output="logits")
    assert (signature.outputs[0].name, signature.outputs[0].shape) == ("logits", ("batch", 10))
    assert signature.preprocessing.height == 32
    graph = trained.proto().graph
    assert [i.name for i in graph.input] == [t.name for t in signature.inputs]
    assert [o.name for o in graph.output] == [t.name for t in signature.outputs]


@pytest.fixture
def again(trained, workspace: Make) -> Callable[..., Report[ExportFacts]]:
    """Return a function that exports the trained network once more."""

    def run(**config: object) -> Report[ExportFacts]:
        return export(
            TorchScript.model_validate(config),
            workspace(trained.store),
            model=trained.artifacts["source"],
            signature=trained.train.facts.signature,
            golden=trained.golden,
        )

    return run


def test_export_has_the_same_bytes_when_repeated(trained, again: Callable[..., Report[ExportFacts]]) -> None:
    assert again().artifacts == trained.export.artifacts
    assert again().facts == trained.export.facts


@pytest.mark.parametrize("opset", [13, 20])
def test_export_writes_the_opset_when_configured(
    trained, again: Callable[..., Report[ExportFacts]], opset: int
) -> None:
    report = again(opset=opset)
    path = trained.store.path(report.artifacts["model"])
    proto = onnx.load(path)
    assert report.facts.opset == proto.opset_import[0].version == opset
    assert report.facts.ir_version == proto.ir_version <= supported_ir_version()
    assert report.facts.nodes == len(proto.graph.node)
    assert report.facts.size_bytes == path.stat().st_size


def check(out: Workspace, folder: Path, body: str, sizes: list[tuple[int, int]]) -> tuple[ExportFacts, Report[Any]]:
    """Bring a network, export it, and return what the numerics gate says of it."""
    source = bring(out, folder, body, input_sizes=sizes)
    signature, golden = source.facts.signature, source.artifacts["golden"]
    exported = export(TorchScript(), out, model=source.artifacts["model"], signature=signature, golden=golden)
    exported.raise_if_blocked()
    return exported.facts, numerics(NumericsConfig(), out, model=exported.artifacts["model"], golden=golden)


def test_export_answers_as_the_source_when_height_and_width_change(tmp_path: Path, workspace: Make) -> None:
    facts, numerics = check(workspace(), tmp_path, "sound", [(24, 20), (16, 40)])
    assert not numerics.failures
    assert {row.data for row in numerics.facts.comparisons} == {"real", "random", "24x20", "16x40"}
    assert facts.traced_constants == ()


def test_numerics_fail_and_name_the_size_when_it_is_answered_silently_wrong(tmp_path: Path, workspace: Make) -> None:
    facts, numerics = check(workspace(), tmp_path, "size_as_number", [(24, 16), (16, 40)])
    assert "numerics.max_rel_error" in {failure.name for failure in numerics.failures}
    assert not [c for c in numerics.checks if c.name == "numerics.failed_batches" and not c.passed]  # it runs
    detail = numerics.failures[0].detail
    assert "worst output 'logits', 16x40 sample" in detail
    assert "right at the data's size, and silently wrong at 16x40: one size is frozen into the graph" in detail
    assert "24x16" not in detail  # only the width is
    assert "remove the size from train.input_sizes" in numerics.failures[0].remedy
    (message,) = facts.traced_constants
    assert message.startswith("nets.py:15: Converting a tensor to a Python integer")


def test_one_size_is_compared_when_no_other_is_promised(tmp_path: Path, workspace: Make) -> None:
    facts, numerics = check(workspace(), tmp_path, "size_as_number", [])
    assert not numerics.failures
    assert {row.data for row in numerics.facts.comparisons} == {"real", "random"}
    assert len(facts.traced_constants) == 1  # a warning all the same


def test_numerics_fail_when_the_branch_of_one_run_is_frozen(tmp_path: Path, workspace: Make) -> None:
    facts, numerics = check(workspace(), tmp_path, "branch_on_values", [])
    assert "numerics.max_rel_error" in {failure.name for failure in numerics.failures}
    assert "Converting a tensor to a Python boolean" in facts.traced_constants[0]
