"""Passes, pruning and recipes compose without being listed by hand, and combinations that cannot win are not tried."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_text
import pytest
import transformer_models
import yaml
from harness import SHORT, quick_config

from configs.loader import load
from configs.schema import PipelineConfig
from flows.record.home import Home
from flows.search.base import Base
from gauntlet.core.artifact import Artifact
from gauntlet.core.report import Report
from gauntlet.core.run_report import RunReport
from tasks.normalize.config import NormalizeFacts
from tasks.optimize import OptimizeConfig, OptimizeFacts
from tasks.optimize.chain import Chain
from tasks.optimize.graph_pass import OrtGraph
from tasks.quantize.dynamic import DynamicInt8
from tasks.quantize.static import StaticInt8

Run = Callable[[PipelineConfig], RunReport]
SLIM = Chain()
PASS = '''
def negated(model):
    """Negate an output twice, which costs nothing and which no optimizer of the runtime undoes."""
    name = model.graph.output[0].name
    maker = next(node for node in model.graph.node if name in node.output)
    maker.output[0] = "before"
    model.graph.node.add(op_type="Neg", name="first", input=["before"], output=["negative"])
    model.graph.node.add(op_type="Neg", name="second", input=["negative"], output=[name])
    return model
'''


@pytest.fixture
def passes(tmp_path: Path) -> str:
    """A chain that is accepted, and a pass that the runtime makes superfluous."""
    (tmp_path / "own_negation.py").write_text(PASS)
    own = f"{{kind: python, function: own_negation:negated, code_folder: {tmp_path}}}"
    chain = f"{{kind: chain, name: mine, passes: [{own}], max_slowdown: 0.99}}"
    return f"optimize=[{chain}, {{kind: ort, level: basic}}]"


def operators(report: RunReport, home: Home, candidate: str) -> list[str]:
    artifact = next(c.artifact for c in report.candidates if c.name == candidate)
    assert artifact is not None
    return [node.op_type for node in onnx.load(home.store.path(artifact)).graph.node]


@pytest.mark.slow
def test_recipes_start_from_the_file_of_the_accepted_passes(run: Run, home: Home, tmp_path: Path, passes: str) -> None:
    proto = onnx_text.model("""
        plain (float[n,32] x) => (float[n,10] y) <float[32,64] w, float[64,10] v>
        { h = MatMul(x, w) r = Relu(h) y = MatMul(r, v) }
    """)
    onnx.save(proto, tmp_path / "plain.onnx")
    np.savez(tmp_path / "samples.npz", x=np.random.default_rng(2).standard_normal((24, 32)).astype(np.float32))
    settings = (
        f"train.model={tmp_path / 'plain.onnx'}",
        f"data.path={tmp_path / 'samples.npz'}",
        "quantize=[{kind: static}, {kind: dynamic, weights: s8}]",
        "quantize_budget_s=0",
        *SHORT,
        passes,
    )
    report = run(load("bring-your-own-onnx", settings))
    assert report.verdict == "passed", report.reason
    found = {c.name: c for c in report.candidates}
    parents = {name: entry.parent for name, entry in found.items()}
    assert parents == {"fp32": None, "mine": "fp32", "ort-basic": "fp32", "static-u8s8": "mine", "dynamic-s8": "mine"}
    assert "of quantize_budget_s, 0 s, are used, and graph passes have 0 s of it" in found["ort-basic"].reason
    for name in ("mine", "static-u8s8"):
        assert operators(report, home, name).count("Neg") == 2, found[name].reason
    late = found["dynamic-s8"]
    assert (late.status, late.artifact) == ("not tried", None)
    assert "of quantize_budget_s, 0 s, are used" in late.reason


@pytest.mark.nightly
def test_recipes_for_products_start_from_fused_attention_and_the_others_do_not(
    run: Run, home: Home, tmp_path: Path
) -> None:
    onnx.save(transformer_models.encoder(), tmp_path / "encoder.onnx")
    np.savez(tmp_path / "samples.npz", tokens=transformer_models.tokens(40))
    fusion = "{kind: chain, name: fused, passes: [{kind: transformers}], max_slowdown: 0.99}"
    settings = (
        f"train.model={tmp_path / 'encoder.onnx'}",
        f"data.path={tmp_path / 'samples.npz'}",
        f"optimize=[{fusion}]",
        "quantize=[{kind: static}, {kind: dynamic, op_types: matmul}, {kind: weight-only, bits: 4, min_weights: 1024}]",
        "quantize_budget_s=600",
        "accuracy.min_sqnr_db=6",
        "accuracy.min_values_sqnr_db=6",
        "accuracy.max_accuracy_drop=0.5",
        *SHORT,
    )
    report = run(load("bring-your-own-onnx", settings))
    assert report.verdict == "passed", report.reason
    assert {c.name: c.parent for c in report.candidates} == {
        "fp32": None,
        "fused": "fp32",
        "static-u8s8": "fp32",
        "dynamic-u8-matmul": "fused",
        "weight-only-4bit-from1024": "fused",
    }
    for name, kernel in (("dynamic-u8-matmul", "MatMulInteger"), ("weight-only-4bit-from1024", "MatMulNBits")):
        found = operators(report, home, name)
        assert (found.count("MultiHeadAttention"), kernel in found) == (2, True)
    assert "MultiHeadAttention" not in operators(report, home, "static-u8s8")


@pytest.mark.nightly
def test_pruned_network_is_optimized_and_quantized_by_what_helped_the_whole_one(
    run: Run, home: Home, passes: str
) -> None:
    settings = (
        passes,
        "quantize=[{kind: static, reduce_range: true}]",
        "accuracy.max_accuracy_drop=0.2",
        "evaluate.min_accuracy=0.6",
        "evaluate.min_recall=0.2",
        "prune=[{kind: structured, macs_fraction: 0.5, round_to: 8, epochs: 2, learning_rate: 0.005}]",
    )
    report = run(quick_config(*settings))
    assert report.verdict == "passed", report.reason
    assert {c.name: c.parent for c in report.candidates} == {
        "fp32": None,
        "mine": "fp32",
        "ort-basic": "fp32",  # the runtime makes the same graph of it, so it is not tried on the pruned network
        "static-u8s8-no-overflow": "mine",
        "pruned-50": "fp32",
        "pruned-50-mine": "pruned-50",
        "pruned-50-static-u8s8-no-overflow": "pruned-50-mine",
    }
    assert operators(report, home, "pruned-50-static-u8s8-no-overflow").count("Neg") == 2
    sqnr = {c.name: c.sqnr_db for c in report.candidates}
    assert 10 < sqnr["pruned-50-static-u8s8-no-overflow"] < 80  # against the pruned network's own outputs


def artifact(name: str) -> Artifact:
    return Artifact(name=name, sha256=(name.encode().hex() * 64)[:64], size_bytes=1, path=name)


def base(name: str = "fp32") -> Base:
    facts = NormalizeFacts(
        changed=False, steps=(), opset_before=17, opset_after=17, ir_version_before=8, ir_version_after=8,
        nodes_before=9, nodes_after=9, size_bytes=1, precision="float32", control_flow={},
    )  # fmt: skip
    return Base(name, artifact("exported"), artifact("normalized"), facts)


def made(name: str, nodes: int, **custom: int) -> Report[OptimizeFacts]:
    facts = OptimizeFacts(nodes_before=9, nodes_after=nodes, size_bytes=1, custom_operators=custom)
    return Report(stage="optimize", facts=facts, artifacts={"model": artifact(name)})


def test_base_is_the_accepted_file_with_fewest_nodes_of_the_standard() -> None:
    accepted: list[tuple[OptimizeConfig, Report[OptimizeFacts]]] = [
        (OrtGraph(level="basic"), made("basic", 7)),
        (SLIM, made("slim", 6)),
        (OrtGraph(level="extended"), made("fused", 4, microsoft=2)),
    ]
    found = base().after(accepted)
    assert (found.model.name, found.passes, found.parent) == ("slim", (SLIM,), "passes")
    assert base("pruned-50").after(accepted).parent == "pruned-50-passes"
    assert base().after(accepted[2:]) == base()
    assert base().after([]).parent == "fp32"


@pytest.mark.parametrize(
    ("one", "kept"),
    [
        ("{kind: transformers}", True),
        ("{kind: chain, name: both, passes: [{kind: ort, level: basic}, {kind: transformers}]}", True),
        ("{kind: transformers, attention: packed}", False),  # its products are gone
        ("{kind: chain, name: all, passes: [{kind: transformers}, {kind: ort, level: extended}]}", False),
    ],
)
def test_file_with_fused_attention_is_kept_for_the_recipes_that_take_it(one: str, kept: bool) -> None:
    [fusion] = PipelineConfig.model_validate({"optimize": [yaml.safe_load(one)]}).optimize
    found = base().after([(SLIM, made("slim", 6)), (fusion, made("fused", 3, microsoft=2))])
    assert found.source(StaticInt8()) == ("passes", artifact("slim"))
    expected = (fusion.name, artifact("fused")) if kept else ("passes", artifact("slim"))
    assert found.source(DynamicInt8()) == expected
    assert base().source(DynamicInt8()) == ("fp32", base().model)
