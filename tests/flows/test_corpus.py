"""Models as other tools write them, through the whole pipeline: no candidate is rejected for a technical reason."""

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from outcome import inapplicable, technical_rejections
from written_models import ARGUMENTS, WRITTEN

from configs.brought_model import infer_config
from configs.loader import validated
from configs.schema import PipelineConfig
from gauntlet.core.run_report import RunReport

QUICK = ("benchmark.batch_sizes=[1]", "benchmark.rounds=6", "benchmark.block_ms=2", "benchmark.restart_processes=false")
QUICK += ("benchmark.max_aa_deviation=1", "benchmark.profile=false", "numerics.samples=8", "data.samples=32")
QUICK += ("optimize=[{kind: ort, level: extended}]", "repair.enabled=false")
CHEAPEST = (
    *("convolutions-opset9", "convolutions-weights-as-inputs", "convolutions-number-names", "convolutions-float16"),
    *("products-weights-as-constants", "products-dynamic-int8", "branch-on-value-constants", "loop-opset11"),
    *("state", "initial-state", "two-inputs-four-outputs-constants", "upsampling-opset9", "infinite-mask"),
)


def run_model(run: Callable[[PipelineConfig], RunReport], name: str, folder: Path, *settings: str) -> RunReport:
    """Run a model of the corpus with the configuration that is inferred for it."""
    path = folder / f"{name}.onnx"
    onnx.save(WRITTEN[name](), path)
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
