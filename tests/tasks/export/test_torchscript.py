"""The exporter: same answers, same bytes, and a model that describes itself."""

from collections.abc import Callable

import numpy as np
import onnx
import pytest

from tasks.data.golden import Golden
from tasks.export import export
from tasks.export.torchscript import TorchScript
from tasks.runtime.session import open_session, run_in_batches, supported_ir_version
from tasks.signature import Signature
from tasks.workspace import Workspace


@pytest.mark.parametrize("batch", [1, 2, 3, 7, 64, 360])
def test_export_answers_as_the_source_when_run_at_any_batch_size(trained, batch: int) -> None:
    golden = Golden.load(trained.store.path(trained.golden))
    session = open_session(trained.path)
    for inputs, expected in [(golden.inputs, golden.outputs), (golden.random_inputs, golden.random_outputs)]:
        actual = run_in_batches(session, inputs, batch)["logits"]
        assert actual.shape == expected["logits"].shape
        np.testing.assert_allclose(actual, expected["logits"], rtol=0, atol=1e-5)


def test_export_carries_the_signature_when_read_back(trained) -> None:
    signature = Signature.read(trained.proto())
    data = trained.data.facts.signature
    assert signature == data.replace(outputs=signature.outputs)
    assert (signature.outputs[0].name, signature.outputs[0].shape) == ("logits", ("batch", 10))
    assert signature.preprocessing.height == 32
    graph = trained.proto().graph
    assert [i.name for i in graph.input] == [t.name for t in signature.inputs]
    assert [o.name for o in graph.output] == [t.name for t in signature.outputs]


def test_export_has_the_same_bytes_when_repeated(trained, workspace: Callable[..., Workspace]) -> None:
    again = export(TorchScript(), workspace(trained.store), model=trained.artifacts["source"])
    assert again.artifacts == trained.export.artifacts
    assert again.facts == trained.export.facts


@pytest.mark.parametrize("opset", [13, 20])
def test_export_writes_the_opset_when_configured(trained, workspace: Callable[..., Workspace], opset: int) -> None:
    out = workspace(trained.store)
    report = export(TorchScript(opset=opset), out, model=trained.artifacts["source"])
    proto = onnx.load(out.path(report.artifacts["model"]))
    assert report.facts.opset == proto.opset_import[0].version == opset
    assert report.facts.ir_version == proto.ir_version <= supported_ir_version()
    assert report.facts.nodes == len(proto.graph.node)
    assert report.facts.size_bytes == out.path(report.artifacts["model"]).stat().st_size
