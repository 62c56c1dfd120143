"""The gate on candidates, with candidates that are broken for real."""

import math
from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tasks.accuracy import AccuracyConfig, AccuracyFacts, check_accuracy
from tasks.artifact import Artifact
from tasks.report import Report
from tasks.workspace import Workspace

Keep = Callable[..., tuple[Workspace, Artifact]]


@pytest.fixture
def judge(trained, keep_model: Keep) -> Callable[..., Report[AccuracyFacts]]:
    def run(proto: onnx.ModelProto, **config: float) -> Report[AccuracyFacts]:
        out, model = keep_model(proto, trained.store)
        return check_accuracy(AccuracyConfig(**config), out, model=model, golden=trained.golden)

    return run


def with_last_weights(proto: onnx.ModelProto, change: Callable[[np.ndarray], np.ndarray]) -> onnx.ModelProto:
    """Change the weights of the last layer."""
    names = {name for node in proto.graph.node if node.op_type == "Gemm" for name in node.input}
    for tensor in proto.graph.initializer:
        if tensor.name in names:
            values = change(numpy_helper.to_array(tensor)).astype(np.float32)
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    return proto


def failed(report: Report[AccuracyFacts]) -> list[str]:
    return [check.name.removeprefix("accuracy.") for check in report.failures]


def test_accuracy_passes_when_the_candidate_is_the_fp32_model(trained, judge) -> None:
    report = judge(trained.proto(), min_sqnr_db=60)
    assert failed(report) == []
    assert report.facts.accuracy == report.facts.reference_accuracy > 0.9
    assert report.facts.top1_agreement == 1
    assert report.facts.images == 360
    assert report.facts.integer_share.share == 0


def test_accuracy_fails_on_both_when_the_classes_are_permuted(trained, judge) -> None:
    report = judge(with_last_weights(trained.proto(), lambda w: np.roll(w, 1, axis=0)), min_sqnr_db=10)
    assert failed(report) == ["max_accuracy_drop", "min_sqnr_db"]
    assert report.facts.accuracy < 0.1


def test_accuracy_fails_on_sqnr_alone_when_outputs_are_rescaled(trained, judge) -> None:
    report = judge(with_last_weights(trained.proto(), lambda w: 2 * w), min_sqnr_db=10)
    assert failed(report) == ["min_sqnr_db"]
    assert report.facts.sqnr_db == pytest.approx(0, abs=1e-4)  # the error is as large as the signal
    assert report.facts.top1_agreement == 1


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_accuracy_fails_when_outputs_are_not_finite(trained, judge, value: float) -> None:
    report = judge(with_last_weights(trained.proto(), lambda w: np.full_like(w, value)))
    assert "min_sqnr_db" in failed(report)
    assert not math.isfinite(report.facts.sqnr_db)


def test_accuracy_counts_a_gain_as_no_loss_when_the_limit_is_zero(trained, judge) -> None:
    assert failed(judge(trained.proto(), max_accuracy_drop=0)) == []
