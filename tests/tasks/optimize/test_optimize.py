"""Graph passes: every member of the union keeps the model what it was."""

import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import onnx_text
import pretrained_models
import pytest

from gauntlet.core.artifact import Artifact
from gauntlet.core.errors import StageError
from gauntlet.core.signature import Signature
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.golden import Golden, GoldenCase
from gauntlet.metrics.output_comparison import Tolerances
from gauntlet.onnx_model import model_file
from gauntlet.onnx_model.model_file import read_graph
from gauntlet.runtime.session import supported_ir_version
from tasks.accuracy import AccuracyConfig, accuracy
from tasks.numerics import NumericsConfig, numerics
from tasks.optimize import OptimizeConfig, optimize
from tasks.optimize.chain import Chain
from tasks.optimize.graph_pass import LAYOUT_DOMAINS, GraphPass, OrtGraph, PythonPass, apply_pass
from tasks.optimize.in_memory_pass import InMemoryPass, inputs_to_weights, weights_to_inputs
from tasks.optimize.verified_pass import ChainState, PassVerifier
from tasks.structure import StructureConfig, structure

MEMBERS = tuple(typing.get_args(OptimizeConfig)[1].kinds().values())
LEVELS = typing.get_args(OrtGraph.model_fields["level"].annotation)
OWN = PythonPass(function="identity_free:remove", code_folder=Path(__file__).parent)
PASSES = [*(m() for m in MEMBERS if m not in (OrtGraph, PythonPass)), *(OrtGraph(level=level) for level in LEVELS), OWN]
Keep = Callable[..., tuple[Workspace, Artifact]]


SINGLES = [p for p in PASSES if not isinstance(p, Chain)]


@pytest.mark.parametrize("graph_pass", SINGLES, ids=lambda p: p.name)
def test_model_keeps_structure_and_numbers_when_a_pass_is_applied(
    trained, workspace: Callable[..., Workspace], graph_pass: Any
) -> None:
    out = workspace(trained.store)
    apply_pass(graph_pass, out.path(trained.model), out.folder / "model.onnx")
    model = out.store_file(out.folder / "model.onnx")
    structure(StructureConfig(), out, model=model).raise_if_blocked()
    numerics(NumericsConfig(), out, model=model, golden=trained.golden).raise_if_blocked()
    accuracy(
        AccuracyConfig(max_accuracy_drop=0, min_sqnr_db=60), out, model=model, golden=trained.golden, test=trained.test
    ).raise_if_blocked()
    assert onnx.load(out.path(model)).ir_version <= supported_ir_version()


@pytest.mark.parametrize("graph_pass", [OrtGraph(level="all"), OWN, Chain()], ids=lambda p: p.name)
def test_optimize_reports_what_is_in_the_file_and_keeps_the_signature(
    trained, workspace: Callable[..., Workspace], graph_pass: Any
) -> None:
    out = workspace(trained.store)
    report = optimize(graph_pass, out, model=trained.model, golden=trained.golden)
    model = report.artifacts["model"]
    numerics(NumericsConfig(), out, model=model, golden=trained.golden).raise_if_blocked()
    proto = onnx.load(out.path(model))
    assert Signature.read(proto) == Signature.read(trained.proto())
    assert report.facts.nodes_before == trained.export.facts.nodes
    assert report.facts.nodes_after == len(proto.graph.node) <= 2 * report.facts.nodes_before
    assert report.facts.size_bytes == out.path(model).stat().st_size
    domains = [n.domain for n in proto.graph.node if n.domain]
    assert report.facts.custom_operators == {d: domains.count(d) for d in set(domains)}
    assert trained.store.is_intact(trained.model)


def redundant() -> onnx.ModelProto:
    """Return a model with an Identity that every pass removes, but those with a purpose of their own."""
    text = "redundant (float[batch,4] x) => (float[batch,4] z) { [same] y = Identity(x) [relu] z = Relu(y) }"
    proto = onnx_text.model(text)
    Signature(inputs=(), outputs=(), labels=("a", "b")).write(proto)
    return proto


def golden_of(out: Workspace) -> Artifact:
    """Return the redundant model's outputs."""
    values = np.ones((8, 4), np.float32)
    Golden({"real": GoldenCase({"x": values}, {"z": values})}, {}).save(out.folder / "golden.npz")
    return out.store_file(out.folder / "golden.npz")


@pytest.mark.parametrize(
    "graph_pass",
    [p for p in SINGLES if p.kind not in ("onnxscript-rewriter", "transformers", "fold-affine", "pad-channels")],
    ids=lambda p: p.name,
)
def test_pass_removes_a_node_when_it_does_nothing(tmp_path: Path, graph_pass: Any) -> None:
    onnx.save(redundant(), tmp_path / "model.onnx")
    proto = apply_pass(graph_pass, tmp_path / "model.onnx", tmp_path / "after.onnx")
    assert [node.op_type for node in proto.graph.node] == ["Relu"]
    assert Signature.read(onnx.load(tmp_path / "after.onnx")).labels == ("a", "b")


@pytest.mark.parametrize("level", LEVELS)
def test_there_is_nothing_to_gain_when_the_runtime_makes_the_same_graph_by_itself(
    trained, workspace: Callable[..., Workspace], level: Any
) -> None:
    report = optimize(OrtGraph(level=level), workspace(trained.store), model=trained.model, golden=trained.golden)
    assert report.facts.nothing_to_gain.startswith("nothing to gain here: ONNX Runtime optimizes the model")
    assert {failure.name for failure in report.failures} <= {"optimize.layout_nodes"}


@pytest.mark.parametrize("ir_version", [3, 8])
def test_pass_that_makes_weights_constant_is_a_candidate(keep_model: Keep, ir_version: int) -> None:
    """A runtime prepares constants for its kernels, in a graph that looks the same."""
    proto = onnx_text.model(
        "replaceable (float[n,4] x, float[4,4] w) => (float[n,4] z) <float[4,4] w> { z = MatMul(x, w) }",
        ir_version=ir_version,
    )
    Signature(inputs=(), outputs=()).write(proto)
    out, model = keep_model(proto)
    values = np.ones((8, 4), np.float32)
    Golden({"real": GoldenCase({"x": values}, {"z": values})}, {}).save(out.folder / "golden.npz")
    golden = out.store_file(out.folder / "golden.npz")
    constant = PythonPass(function="identity_free:without_default_inputs", code_folder=OWN.code_folder)
    either = 0.9  # processors differ in whether so small a product gets faster by it
    report = optimize(Chain(passes=(constant,), max_slowdown=either), out, model=model, golden=golden)
    assert (report.failures, report.facts.nothing_to_gain) == ((), "")
    assert report.facts.passes[0].outcome == "accepted"


def test_there_is_nothing_to_gain_from_a_pass_that_changes_nothing(keep_model: Keep) -> None:
    proto = onnx_text.model("plain (float[batch,4] x) => (float[batch,4] z) { z = Relu(x) }")
    Signature(inputs=(), outputs=()).write(proto)
    out, model = keep_model(proto)
    report = optimize(OWN, out, model=model, golden=golden_of(out))
    assert (report.failures, report.facts.nothing_to_gain) == ((), "nothing to gain here: no pass changes the graph")


def test_candidate_is_rejected_when_its_layout_is_the_processors(trained, workspace: Callable[..., Workspace]) -> None:
    report = optimize(OrtGraph(level="all"), workspace(trained.store), model=trained.model, golden=trained.golden)
    count = sum(n for domain, n in report.facts.custom_operators.items() if domain in LAYOUT_DOMAINS)
    if not count:
        pytest.skip("ONNX Runtime has no layout of its own for this processor")
    (failure,) = (failure for failure in report.failures if failure.name == "optimize.layout_nodes")
    assert failure.value == count
    assert "another one may not load them" in failure.detail


def test_candidate_goes_on_when_a_model_came_with_a_layout_and_gets_no_more_of_it(trained, keep_model: Keep) -> None:
    out, model = keep_model(trained.proto())
    report = optimize(OrtGraph(level="all"), out, model=model, golden=golden_of(out))
    again = optimize(OrtGraph(level="basic"), out, model=report.artifacts["model"], golden=golden_of(out))
    assert "optimize.layout_nodes" not in {failure.name for failure in again.failures}


def test_candidate_goes_on_when_the_runtime_makes_another_graph_of_it(keep_model: Keep) -> None:
    out, model = keep_model(redundant())
    other = PythonPass(function="identity_free:replace", code_folder=OWN.code_folder)
    assert optimize(other, out, model=model, golden=golden_of(out)).failures == ()


def test_stage_fails_when_the_runtime_refuses_the_model(keep_model: Keep) -> None:
    proto = redundant()
    proto.graph.node[0].op_type = "Add"  # the first node needs the second one's result
    proto.graph.node[0].input.append("z")
    out, model = keep_model(proto)
    for graph_pass in (OrtGraph(), OWN):
        with pytest.raises(StageError, match="refuses the model"):
            optimize(graph_pass, out, model=model, golden=golden_of(out))


def test_pass_raises_when_there_is_no_such_function(tmp_path: Path) -> None:
    onnx.save(redundant(), tmp_path / "model.onnx")
    with pytest.raises(StageError, match="nowhere"):
        apply_pass(PythonPass(function="nowhere:at_all"), tmp_path / "model.onnx", tmp_path / "after.onnx")


def test_chain_takes_every_single_pass() -> None:
    assert {*typing.get_args(GraphPass)[1].kinds().values(), Chain} == {*MEMBERS}
    assert typing.get_args(Chain.model_fields["passes"].annotation)[0] == GraphPass
    files = OWN.files()
    assert Chain(passes=(OrtGraph(), OWN)).files() == files
    assert Path(__file__).parent / "identity_free.py" in files


def test_chain_has_the_passes_that_are_installed_and_ends_with_the_runtimes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {one.kind for one in Chain().passes} <= {member.model_fields["kind"].default for member in MEMBERS}
    assert Chain().passes[-1] == OrtGraph(level="basic")
    monkeypatch.setattr("tasks.optimize.chain.kinds", lambda part: {})
    assert Chain().passes == (OrtGraph(level="basic"),)


def test_weights_are_given_back_as_far_as_anything_reads_them() -> None:
    graph = onnx_text.model("""
        shared (float[2] x) => (float[2] y)
        <float[2] inner = ["location": "w.bin"], float[2] unread = ["location": "w.bin"], float[2] small = {1, 2}>
        {
            s = Add(x, small)
            y = If(yes) <
                then_branch = then () => (float[2] t) { t = Neg(inner) },
                else_branch = else () => (float[2] e) { e = Neg(inner) }
            >
        }
    """).graph
    weights = weights_to_inputs(graph)
    assert [tensor.name for tensor in weights] == ["inner", "unread"]
    assert [value.name for value in graph.input] == ["x", "inner", "unread"]
    assert [tensor.name for tensor in graph.initializer] == ["small"]
    inputs_to_weights(graph, weights)
    assert [value.name for value in graph.input] == ["x"]
    assert [tensor.name for tensor in graph.initializer] == ["small", "inner"]


class Breaks(InMemoryPass):
    """A pass that fails on every model, as optimizers do on operators that they do not know."""

    kind: Literal["breaks"] = "breaks"

    def transform(self, proto: onnx.ModelProto) -> onnx.ModelProto:
        raise AttributeError("'NoneType' object has no attribute 'opset_import'")


@pytest.mark.parametrize(("domain", "outcome"), [("ai.onnx.ml", "unchanged"), ("other", "rejected")])
def test_graph_of_trees_alone_has_nothing_for_a_pass(tmp_path: Path, domain: str, outcome: str) -> None:
    graph = f"(float[n,2] x) => (float[n,2] y) {{ y = {domain}.Scaler(x) }}"
    onnx.save(
        onnx.parser.parse_model(f'<ir_version: 3, opset_import: ["{domain}" : 1]> g {graph}'), tmp_path / "m.onnx"
    )
    verifier = PassVerifier(cases={}, numerics=Tolerances(), max_slowdown=0.1, signature=None)
    assert verifier.verify(Breaks(), tmp_path / "m.onnx", tmp_path / "after.onnx").outcome == outcome


def test_file_with_weights_is_kept_as_long_as_the_chains_model_names_it(tmp_path: Path) -> None:
    first, _ = pretrained_models.external_data(tmp_path)
    names = ("pass-0.onnx", "pass-1.onnx")
    model_file.copy_model(first, tmp_path / names[0])
    onnx.save(read_graph(tmp_path / names[0]), tmp_path / names[1])
    ChainState(pending=(), model=names[1]).tidy(tmp_path)
    assert {file.name for file in tmp_path.glob("pass-*")} == {"pass-0.onnx.data", "pass-1.onnx"}
