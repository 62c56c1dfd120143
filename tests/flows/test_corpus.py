"""Models as other tools write them, through the whole pipeline: no candidate is rejected for a technical reason."""

from collections.abc import Callable
from pathlib import Path

import pytest
from all_models import ARGUMENTS, MODELS
from outcome import Outcome, inapplicable, technical_rejections

from configs.brought_model import infer_config
from configs.loader import validated
from configs.schema import PipelineConfig
from gauntlet.core.run_report import CandidateEntry, RunReport

QUICK = ("benchmark.batch_sizes=[1]", "benchmark.rounds=6", "benchmark.block_ms=2", "benchmark.restart_processes=false")
QUICK += ("benchmark.max_aa_deviation=1", "benchmark.profile=false", "numerics.samples=8", "data.samples=32")
QUICK += ("optimize=[{kind: ort, level: extended}]", "repair.enabled=false")
QUICK += ("quantize=[{kind: static}, {kind: dynamic, op_types: matmul}]",)
CHEAPEST = (
    *(
        "convolutions-opset9",
        "convolutions-opset20",
        "convolutions-weights-as-constants",
        "convolutions-weights-as-inputs",
    ),
    *("convolutions-number-names", "convolutions-wrong-shapes", "convolutions-without-names", "convolutions-float16"),
    *("convolutions-static-int8", "convolutions-batch1", "products-weights-as-constants", "products-dynamic-int8"),
    *("branch-on-value-constants", "branch-on-input", "loop-opset11", "loop-weights-as-constants"),
    *("state-dynamic-int8", "initial-state", "two-inputs-four-outputs-constants", "detector-opset11"),
    *("detector-with-nms", "infinite-mask", "tokens", "upsampling-opset9", "upsampling-opset11", "computed-weights"),
    *("convolutions-opset20", "no-products", "skl2onnx-mlp"),
)
"""A third of the corpus: the models that take least, of every kind."""
FP32 = CandidateEntry(name="fp32", parent=None, status="accepted", reason="the reference")


def run_model(run: Callable[[PipelineConfig], RunReport], name: str, folder: Path, *settings: str) -> RunReport:
    """Run a model of the corpus with the configuration that is inferred for it."""
    path = folder / f"{name}.onnx"
    MODELS[name](path)
    shapes = {}
    for word in ARGUMENTS.get(name, ())[1::2]:
        tensor, _, axes = word.partition("=")
        shapes[tensor] = tuple(map(int, axes.split("x")))
    return run(validated(path, infer_config(path, None, None, shapes).values, (*QUICK, *settings)))


@pytest.mark.slow
@pytest.mark.parametrize("name", CHEAPEST)
def test_no_candidate_is_rejected_for_a_technical_reason(
    run: Callable[[PipelineConfig], RunReport], tmp_path: Path, name: str
) -> None:
    report = run_model(run, name, tmp_path)
    assert technical_rejections(report) == {}
    assert report.winner is not None
    if name == "products-dynamic-int8":
        assert set(inapplicable(report)) == {c.name for c in report.candidates} - {"fp32", "normalized", "ort-extended"}


@pytest.mark.slow
def test_technical_rejection_is_noticed(run: Callable[[PipelineConfig], RunReport], tmp_path: Path) -> None:
    report = run_model(run, "products-opset13", tmp_path, "structure.max_opset=12")
    assert "structure.max_opset" in technical_rejections(report)["products-opset13"]


@pytest.mark.parametrize(
    ("reason", "technical"),
    [
        ("accuracy.min_cosine: 0.97 must be >= 0.99; output 'scores'", False),
        ("not proven faster: 1.01x [0.99, 1.62] at batch 1", False),
        ("optimize.same_graph: 1 must be == 0", False),
        ("not tried: 50 s of quantize_budget_s, 60 s, are used, and a recipe has taken up to 12 s", False),
        ("the recipes quantize float32 models, and this one is not: its weights are float64", False),
        ("quantize broke: static-u8s8: KeyError: 'scale'", True),
        ("structure.checker_errors: 1 must be == 0; not valid ONNX", True),
        ("numerics.failed_batches: 1 must be == 0", True),
        ("could not be measured: no reply within 120 s", True),
    ],
)
def test_a_rejection_that_names_neither_accuracy_nor_speed_is_technical(reason: str, technical: bool) -> None:
    candidate = CandidateEntry(name="static-u8s8", parent="fp32", status="rejected", reason=reason)
    outcome = Outcome.of("model", 1, 2, report(candidates=(FP32, candidate)))
    assert (outcome.winner, outcome.row) == ("fp32", None)
    assert outcome.technical == ({"static-u8s8": reason} if technical else {})
    assert ("static-u8s8" in outcome.rejected) == (not technical and "static-u8s8" not in outcome.inapplicable)


def test_run_that_failed_is_a_technical_rejection_of_the_model() -> None:
    outcome = Outcome.of("model", 1, 2, report(verdict="failed", winner=None, reason="normalize broke: no"))
    assert outcome.technical == {"model": "normalize broke: no"}


def report(**changes: object) -> RunReport:
    """A run without stages."""
    values = {"run_id": "r", "name": "model", "started_at": "", "verdict": "passed", "stopped_at": None, "reason": ""}
    values |= {"winner": "fp32", "seconds": 1, "environment": {}, "config": {}, "stages": (), "candidates": ()}
    return RunReport.model_validate(values | changes)
