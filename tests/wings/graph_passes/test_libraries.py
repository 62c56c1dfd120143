"""Passes of other libraries: alone, in a chain, as groups that are halved; fusions that change an output are undone."""

import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_text
import pretrained_models
import pytest
import transformer_models

from configs.brought_model import infer_config
from gauntlet.core.artifact import Artifact
from gauntlet.core.report import Report
from gauntlet.core.signature import Signature, signature_from_graph
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.golden import Golden, GoldenCase
from gauntlet.metrics.output_comparison import Tolerances
from gauntlet.onnx_model import model_file
from gauntlet.onnx_model.model_file import copy_model, external_locations, read_graph
from gauntlet.runtime.batched_inference import batched_inference
from gauntlet.runtime.session import open_session
from gauntlet.runtime.subprocess_runner import run_in_subprocess
from tasks.numerics import NumericsConfig, numerics
from tasks.optimize import OptimizeFacts, optimize
from tasks.optimize.chain import Chain
from tasks.optimize.graph_pass import GraphPass, OrtGraph, PythonPass, apply_pass
from tasks.optimize.verified_pass import ChainState, PassFacts, try_pending_passes
from wings.graph_passes.simplifiers import OnnxOptimizer, OnnxScript, OnnxScriptRewriter, OnnxSim, OnnxSlim, _without
from wings.graph_passes.transformers import TransformerFusions

pytestmark = pytest.mark.slow
Own = Callable[[str], PythonPass]
PASSES = (OnnxSim(), OnnxSlim(), OnnxScript(), OnnxOptimizer(), OrtGraph(level="basic"))


@pytest.mark.parametrize("graph_pass", PASSES, ids=lambda p: p.name)
@pytest.mark.parametrize("target", ["after.onnx", "elsewhere/after.onnx"])
def test_large_model_is_simplified_and_its_weights_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, graph_pass: GraphPass, target: str
) -> None:
    monkeypatch.setattr(model_file, "MAX_ONE_FILE_BYTES", 4000)  # two gigabytes would say the same, slowly
    source, samples = pretrained_models.above_two_gigabytes(tmp_path, side=40)
    weights, path = tmp_path / "weights.bin", tmp_path / target
    path.parent.mkdir(exist_ok=True)
    before, stat = open_session(source).run(None, samples)[0], weights.stat()
    apply_pass(graph_pass, source, path)
    after = read_graph(path).graph
    assert [node.op_type for node in after.node] == ["MatMul", "MatMul"]
    assert [value.name for value in after.input] == ["x"]
    assert np.array_equal(open_session(path).run(None, samples)[0], before)
    onnx.checker.check_model(path, full_check=True)
    assert (weights.stat().st_mtime_ns, weights.stat().st_size) == (stat.st_mtime_ns, stat.st_size)
    own = isinstance(graph_pass, OrtGraph) or path.parent != tmp_path
    assert external_locations(read_graph(path)) == ["after.onnx.data" if own else "weights.bin"]


def work(subject, *passes) -> Report[OptimizeFacts]:
    return optimize(Chain(passes=passes), subject.out, model=subject.model, golden=subject.golden)


def by_name(report: Report[OptimizeFacts]) -> dict[str, PassFacts]:
    return {facts.name: facts for facts in report.facts.passes}


def test_wrong_pass_in_a_chain_of_ten_is_named(subject, own: Own) -> None:
    passes = (
        OnnxSim(),
        own("nothing"),
        OnnxSlim(),
        OnnxScriptRewriter(),
        OrtGraph(level="basic"),
        own("wrong_bias"),
        OnnxScript(),
        OnnxOptimizer(),
        OnnxOptimizer(passes=("eliminate_identity",)),
        OrtGraph(level="extended"),
    )
    report = work(subject, *passes)
    facts = by_name(report)
    assert len(report.facts.passes) == 10
    assert [f.name for f in report.facts.passes if f.broke] == ["wrong_bias"]
    wrong = facts["wrong_bias"]
    assert (wrong.outcome, wrong.broke) == ("rejected", "wrong")
    assert wrong.max_abs_error > 0.01
    assert "'y' changes by" in wrong.reason
    # What the others made is kept, and is right.
    assert facts["onnxsim"].outcome == "accepted"
    assert report.facts.nodes_after < report.facts.nodes_before
    assert report.failures == ()
    numerics(
        NumericsConfig(samples=8), subject.out, model=report.artifacts["model"], golden=subject.golden
    ).raise_if_blocked()
    assert Signature.read(onnx.load(subject.out.path(report.artifacts["model"]))).inputs[0].name == "x"


def test_group_is_bisected_to_the_single_pass_when_it_breaks_the_model(subject) -> None:
    group = OnnxOptimizer(passes=("eliminate_identity", "split_predict", "eliminate_deadend", "fuse_bn_into_conv"))
    facts = by_name(work(subject, group))
    assert facts["onnxoptimizer-eliminate_identity-to-fuse_bn_into_conv"].outcome == "split"
    assert facts["onnxoptimizer-split_predict"].outcome == "rejected"
    assert facts["onnxoptimizer-eliminate_identity"].outcome == "accepted"
    assert facts["onnxoptimizer-eliminate_deadend-to-fuse_bn_into_conv"].outcome == "accepted"


def test_process_ends_behind_a_split_group_so_that_the_halves_get_time_of_their_own(subject, tmp_path: Path) -> None:
    group = OnnxOptimizer(passes=("eliminate_identity", "split_predict", "eliminate_deadend", "fuse_bn_into_conv"))
    copy_model(subject.out.path(subject.model), tmp_path / "original.onnx")
    ChainState(pending=(group, OnnxSlim()), model="original.onnx").write(tmp_path)
    arguments = (tmp_path, subject.out.path(subject.golden), NumericsConfig(samples=8), 0.02, 60)
    run_in_subprocess(try_pending_passes, *arguments, timeout_s=180, memory_bytes=4_000_000_000)
    state = ChainState.read(tmp_path)
    assert [step.outcome for step in state.steps] == ["split"]
    assert state.pending == (*group.halves(), OnnxSlim())


@pytest.mark.parametrize(
    "graph_pass", [OnnxOptimizer(passes=("fuse_all",)), OnnxScriptRewriter(rules=("no_rule",))], ids=lambda p: p.name
)
def test_group_raises_when_it_has_no_pass_of_a_name(subject, tmp_path: Path, graph_pass: Any) -> None:
    with pytest.raises(ValueError, match=r"unknown '(fuse_all|no_rule)'; available: "):
        apply_pass(graph_pass, subject.out.path(subject.model), tmp_path / "after.onnx")


@pytest.mark.parametrize("group", [OnnxOptimizer(), OnnxScriptRewriter()], ids=lambda p: p.name)
def test_halves_of_a_group_hold_every_pass_once(group: Any) -> None:
    def singles(part: Any) -> list[Any]:
        parts = part.halves()
        return [single for half in parts for single in singles(half)] if parts else [part]

    names = [single.name for single in singles(group)]
    assert len(set(names)) == len(names) > 20
    assert OnnxSlim().halves() == ()


def test_chain_has_these_passes_in_the_order_in_which_they_help() -> None:
    expected = ["onnxsim", "fold-affine", "onnxslim", "onnxscript", "onnxoptimizer", "pad-channels", "ort-basic"]
    assert [one.name for one in Chain().passes] == expected


FRESH = """
import sys
from pathlib import Path
from wings.graph_passes.simplifiers import OnnxSim
OnnxSim().apply(Path(sys.argv[1]), Path(sys.argv[2]))
assert "onnxsim" in sys.modules and "torch" not in sys.modules
import torch
assert torch.zeros(1).sum() == 0
"""


def test_onnxsim_loads_no_torch_in_a_fresh_process_and_torch_can_be_loaded_after_it(trained, tmp_path) -> None:
    command = [sys.executable, "-c", FRESH, trained.path, tmp_path / "after.onnx"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_package_is_absent_only_inside(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "hidden_package.py").write_text("VALUE = 1")
    with _without("hidden_package"), pytest.raises(ImportError):
        import hidden_package
    import hidden_package

    with _without("hidden_package"):  # it is loaded, and others may use it
        assert sys.modules["hidden_package"] is hidden_package


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


def test_reason_that_all_passes_share_is_told_once(workspace: Callable[..., Workspace]) -> None:
    out, values = workspace(), np.ones((8, 4), np.float32)
    proto = onnx_text.model(
        'g (float[n,4] x) => (float[n,4] z) { z = ai.onnx.ml.Normalizer <norm = "L1"> (x) }', domains={"ai.onnx.ml": 3}
    )
    Signature(inputs=(), outputs=()).write(proto)
    onnx.save(proto, out.folder / "model.onnx")
    Golden({"real": GoldenCase({"x": values}, {"z": values / 4})}, {}).save(out.folder / "golden.npz")
    model, golden = (out.store_file(out.folder / name) for name in ("model.onnx", "golden.npz"))
    facts = optimize(Chain(passes=(OnnxSlim(), OnnxSim())), out, model=model, golden=golden).facts
    assert facts.nothing_to_gain == "nothing to gain here: no pass changes the graph; all operators are of ai.onnx.ml"
