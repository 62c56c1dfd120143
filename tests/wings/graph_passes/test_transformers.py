"""The fusions of `onnxruntime.transformers` keep the outputs, are undone where they do not, and need attention."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_text
import pytest
import transformer_models

from configs.brought_model import infer_config
from gauntlet.core.artifact import Artifact
from gauntlet.core.report import Report
from gauntlet.core.signature import signature_from_graph
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.golden import Golden, GoldenCase
from gauntlet.metrics.output_comparison import Tolerances
from gauntlet.runtime.batched_inference import batched_inference
from gauntlet.runtime.session import open_session
from tasks.optimize import OptimizeFacts, optimize
from tasks.optimize.chain import Chain
from wings.graph_passes.transformers import TransformerFusions

ANY_SPEED = 0.99
Encoder = tuple[Workspace, Artifact, Artifact]


@pytest.fixture
def encoder(keep_model: Callable[..., tuple[Workspace, Artifact]]) -> Encoder:
    """An encoder and its golden outputs."""
    proto = transformer_models.encoder()
    signature_from_graph(proto).write(proto)
    out, model = keep_model(proto)
    inputs = {"tokens": transformer_models.tokens()}
    case = GoldenCase(inputs, batched_inference(open_session(out.path(model)), inputs).run(8))
    Golden({"real": case}, {}).save(out.folder / "golden.npz")
    return out, model, out.store_file(out.folder / "golden.npz")


def fused(encoder: Encoder, graph_pass: TransformerFusions, **limits: float) -> Report[OptimizeFacts]:
    out, model, golden = encoder
    chain = Chain(passes=(graph_pass,), max_slowdown=ANY_SPEED)
    return optimize(chain, out, model=model, golden=golden, limits=Tolerances(**limits))


@pytest.mark.parametrize(
    ("graph_pass", "operator", "products"),
    [(TransformerFusions(), "MultiHeadAttention", 12), (TransformerFusions(attention="packed"), "Attention", 6)],
    ids=lambda value: getattr(value, "name", None),
)
def test_attention_normalization_and_gelu_become_one_operator_each(
    encoder: Encoder, graph_pass: TransformerFusions, operator: str, products: int
) -> None:
    report = fused(encoder, graph_pass)
    report.raise_if_blocked()
    out, model, _ = encoder
    path = out.path(report.artifacts["model"])
    found = Counter(node.op_type for node in onnx.load(path).graph.node)
    wanted = {operator: 2, "SkipLayerNormalization": 4, "BiasGelu": 2, "MatMul": products}
    assert {name: found[name] for name in (operator, "SkipLayerNormalization", "BiasGelu", "MatMul")} == wanted
    assert not found["Softmax"]
    assert report.facts.custom_operators == {"com.microsoft": 8}
    samples = {"tokens": transformer_models.tokens(7, seed=2)}
    expected, actual = (open_session(file).run(None, samples)[0] for file in (out.path(model), path))
    assert np.abs(actual - expected).max() < 1e-4
    assert not np.array_equal(actual, expected)  # other kernels computed it


def test_fusion_that_changes_an_output_by_more_than_the_limit_is_undone_and_reported(encoder: Encoder) -> None:
    report = fused(encoder, TransformerFusions(), max_rel_error=1e-12)
    out, model, _ = encoder
    assert report.facts.passes[0].broke == "wrong"
    [failed] = report.failures
    assert failed.name == "optimize.accepted_passes"
    assert "transformers: 'logits' changes by" in failed.detail
    kept = onnx.load(out.path(report.artifacts["model"])).graph
    assert [n.op_type for n in kept.node] == [n.op_type for n in onnx.load(out.path(model)).graph.node]


def test_brought_model_gets_the_fusions_only_where_it_has_attention(tmp_path: Path) -> None:
    perceptron = "m (float[n,4] x) => (float[n,4] y) <float[4,4] w> { y = MatMul(x, w) }"
    found = []
    for proto in (transformer_models.encoder(), onnx_text.model(perceptron)):
        onnx.save(proto, tmp_path / "model.onnx")
        found.append(infer_config(tmp_path / "model.onnx", None, None, {}).values["optimize"])
    assert found == [[*found[1], {"kind": "transformers"}], found[1]]


def test_model_without_attention_is_left_alone_with_the_reason(subject) -> None:
    report = optimize(TransformerFusions(), subject.out, model=subject.model, golden=subject.golden)
    assert report.facts.passes[0].outcome == "unchanged"
    assert "no pass changes the graph; the graph has no attention" in report.facts.nothing_to_gain
