"""Graph passes: every member of the union keeps the model what it was."""

import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tasks.accuracy import AccuracyConfig, check_accuracy
from tasks.artifact import Artifact
from tasks.data.golden import Case, Golden
from tasks.errors import StageError
from tasks.optimize import OptimizeConfig, optimize, users_files
from tasks.optimize.chain import Chain
from tasks.optimize.graph_pass import LAYOUT_DOMAINS, GraphPass, halves
from tasks.optimize.onnxoptimizer import OnnxOptimizer
from tasks.optimize.onnxscript import OnnxScript, OnnxScriptRewriter
from tasks.optimize.onnxsim import OnnxSim
from tasks.optimize.onnxslim import OnnxSlim
from tasks.optimize.ort import OrtGraph
from tasks.optimize.own import OwnPass
from tasks.runtime.session import supported_ir_version
from tasks.signature import Signature
from tasks.validate.numerics import NumericsConfig, check_numerics
from tasks.validate.structure import StructureConfig, check_structure
from tasks.workspace import Workspace

MEMBERS = typing.get_args(typing.get_args(OptimizeConfig)[0])
LEVELS = typing.get_args(OrtGraph.model_fields["level"].annotation)
OWN = OwnPass(function="identity_free:remove", folder=Path(__file__).parent)
PASSES = [
    *(m() for m in MEMBERS if m not in (OrtGraph, OwnPass)),
    *(OrtGraph(level=level) for level in LEVELS),
    OWN,
]
Keep = Callable[..., tuple[Workspace, Artifact]]


def test_passes_cover_the_union_when_listed() -> None:
    assert {type(p) for p in PASSES} == set(MEMBERS)
    assert len({p.name for p in PASSES}) == len(PASSES)


@pytest.mark.parametrize("graph_pass", PASSES, ids=lambda p: p.name)
def test_optimize_keeps_structure_numbers_and_signature_when_a_pass_is_applied(
    trained, workspace: Callable[..., Workspace], graph_pass: Any
) -> None:
    out = workspace(trained.store)
    report = optimize(graph_pass, out, model=trained.model, golden=trained.golden)
    model = report.artifacts["model"]
    check_structure(StructureConfig(), out, model=model).enforce()
    check_numerics(NumericsConfig(), out, model=model, golden=trained.golden).enforce()
    check_accuracy(
        AccuracyConfig(max_accuracy_drop=0, min_sqnr_db=60), out, model=model, golden=trained.golden, test=trained.test
    ).enforce()
    proto = onnx.load(out.path(model))
    assert Signature.read(proto) == Signature.read(trained.proto())
    assert proto.ir_version <= supported_ir_version()
    assert report.facts.nodes_before == trained.export.facts.nodes
    assert report.facts.nodes_after == len(proto.graph.node) <= 2 * report.facts.nodes_before
    assert report.facts.size_bytes == out.path(model).stat().st_size
    domains = [n.domain for n in proto.graph.node if n.domain]
    assert report.facts.custom_operators == {d: domains.count(d) for d in set(domains)}
    assert trained.store.intact(trained.model)


def redundant() -> onnx.ModelProto:
    """Return a model with an Identity that every pass removes."""
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 4]) for name in "xz"]
    chain = [helper.make_node("Identity", ["x"], ["y"], "same"), helper.make_node("Relu", ["y"], ["z"], "relu")]
    graph = helper.make_graph(chain, "g", value[:1], value[1:])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    Signature(inputs=(), outputs=(), labels=("a", "b")).write(proto)
    return proto


@pytest.mark.parametrize(
    "graph_pass", [p for p in PASSES if not isinstance(p, OnnxScriptRewriter)], ids=lambda p: p.name
)
def test_optimize_removes_a_node_when_it_does_nothing(keep_model: Keep, graph_pass: Any) -> None:
    out, model = keep_model(redundant())
    values = np.ones((8, 4), np.float32)
    Golden({"real": Case({"x": values}, {"z": values})}, {}).save(out.folder / "golden.npz")
    report = optimize(graph_pass, out, model=model, golden=out.keep(out.folder / "golden.npz"))
    assert (report.facts.nodes_before, report.facts.nodes_after) == (2, 1)
    assert Signature.read(onnx.load(out.path(report.artifacts["model"]))).labels == ("a", "b")


def test_optimize_warns_and_does_not_block_when_the_layout_is_the_processors(
    trained, workspace: Callable[..., Workspace]
) -> None:
    report = optimize(OrtGraph(level="all"), workspace(trained.store), model=trained.model)
    count = sum(n for domain, n in report.facts.custom_operators.items() if domain in LAYOUT_DOMAINS)
    check = report.checks[0]
    assert (check.name, check.value, check.passed) == ("optimize.layout_nodes", count, count == 0)
    assert "optimize.layout_nodes" not in {failure.name for failure in report.failures}


@pytest.mark.parametrize("level", LEVELS)
def test_candidate_is_rejected_when_the_runtime_makes_the_same_graph_of_it(
    trained, workspace: Callable[..., Workspace], level: Any
) -> None:
    report = optimize(OrtGraph(level=level), workspace(trained.store), model=trained.model)
    (failure,) = report.failures
    assert failure.name == "optimize.same_graph"
    assert "so it cannot be faster" in failure.detail


def test_candidate_goes_on_when_the_runtime_makes_another_graph_of_it(keep_model: Keep) -> None:
    out, model = keep_model(redundant())
    other = OwnPass(function="identity_free:replace", folder=OWN.folder)
    assert optimize(other, out, model=model).failures == ()
    gone = OwnPass(function="identity_free:unregister", folder=OWN.folder)
    assert optimize(gone, out, model=model).failures == ()  # the structure's gate tells that the runtime refuses it


def in_a_circle(graph: onnx.GraphProto) -> None:
    """Let the first node need the second one's result."""
    graph.node[0].op_type = "Add"
    graph.node[0].input.append("z")


def with_a_short_tensor(graph: onnx.GraphProto) -> None:
    """Add a constant with fewer bytes than its shape needs."""
    graph.initializer.append(TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4, 4], raw_data=b"123"))
    graph.node[0].op_type = "MatMul"
    graph.node[0].input.append("w")


@pytest.mark.parametrize(
    ("graph_pass", "damage"),
    [
        (OrtGraph(), in_a_circle),
        (OnnxOptimizer(), with_a_short_tensor),
        (OnnxSim(), with_a_short_tensor),
        (OnnxSlim(), in_a_circle),
        (OnnxScript(), with_a_short_tensor),
        (OnnxOptimizer(passes=("fuse_all",)), lambda graph: None),
        (OnnxScriptRewriter(rules=("no_rule",)), lambda graph: None),
        (OwnPass(function="nowhere:at_all"), lambda graph: None),
    ],
    ids=lambda value: getattr(value, "name", "damage"),
)
def test_optimize_raises_a_stage_error_when_the_pass_itself_fails(
    keep_model: Keep, graph_pass: Any, damage: Callable[[onnx.GraphProto], None]
) -> None:
    proto = redundant()
    damage(proto.graph)
    out, model = keep_model(proto)
    with pytest.raises(StageError, match=f"{graph_pass.kind}: ") as caught:
        optimize(graph_pass, out, model=model)
    assert caught.value.__cause__ is not None


def test_chain_takes_every_single_pass() -> None:
    singles = set(typing.get_args(typing.get_args(GraphPass)[0]))
    assert singles == set(MEMBERS) - {Chain}
    assert (
        users_files(Chain(passes=(OnnxSlim(), OWN)))
        == users_files(OWN)
        == (Path(__file__).parent / "identity_free.py",)
    )


@pytest.mark.parametrize("group", [OnnxOptimizer(), OnnxScriptRewriter()], ids=lambda p: p.name)
def test_halves_of_a_group_hold_every_pass_once(group: Any) -> None:
    def singles(part: Any) -> list[Any]:
        parts = halves(part)
        return [single for half in parts for single in singles(half)] if parts else [part]

    names = [single.name for single in singles(group)]
    assert len(set(names)) == len(names) > 20
    assert halves(OnnxSlim()) == ()
