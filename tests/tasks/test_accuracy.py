"""The gate on candidates, with candidates that are broken for real."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx_text
import pytest
from onnx import numpy_helper
from PIL import Image

from gauntlet.core.artifact import Artifact
from gauntlet.core.report import Report
from gauntlet.core.workspace import Workspace
from gauntlet.datasets import read_split
from gauntlet.datasets.golden import Golden, GoldenCase
from tasks.accuracy import AccuracyConfig, AccuracyFacts, accuracy
from tasks.quantize.float16 import Float16

Keep = Callable[..., tuple[Workspace, Artifact]]


@pytest.fixture
def judge(trained, keep_model: Keep) -> Callable[..., Report[AccuracyFacts]]:
    def run(proto: onnx.ModelProto, confidence: dict[str, Any] | None = None, **config: float) -> Report[AccuracyFacts]:
        out, model = keep_model(proto, trained.store)
        inputs = {"model": model, "golden": trained.golden, "test": trained.test, **(confidence or {})}
        return accuracy(AccuracyConfig(**config), out, **inputs)

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
    assert report.facts.flips == ()
    assert report.facts.images == 360
    assert report.facts.integer_share is None


def test_accuracy_fails_when_a_float16_candidate_is_infinite_elsewhere(trained, judge, tmp_path) -> None:
    pytest.importorskip("wings.portability.half_range")
    proto, large = trained.proto(), 9000.0
    last = next(node for node in reversed(proto.graph.node) if node.op_type == "Gemm")
    source, last.input[0] = last.input[0], "again"
    text = f"""<float up = {{{large}}}, float down = {{{1 / large}}}>
    {{ a = Mul(features, up) b = Mul(a, up) c = Mul(b, down) again = Mul(c, down) }}"""
    onnx_text.extend(proto, text, [*proto.graph.node].index(last))
    next(node for node in proto.graph.node if node.input[0] == "features").input[0] = source
    onnx.save(proto, tmp_path / "float.onnx")
    Float16().quantize(tmp_path / "float.onnx", None, None, tmp_path / "half.onnx")
    half = onnx.load(tmp_path / "half.onnx")
    assert failed(judge(half)) == []
    model = trained.store.put(tmp_path / "float.onnx")
    assert failed(judge(half, {"float_model": model})) == ["overflowing_tensors"]


def test_accuracy_fails_on_both_when_the_classes_are_permuted(trained, judge) -> None:
    report = judge(with_last_weights(trained.proto(), lambda w: np.roll(w, 1, axis=0)), min_sqnr_db=10)
    assert failed(report) == ["max_accuracy_drop", "max_class_drop", "max_ranking_drop", "min_sqnr_db"]
    assert report.facts.accuracy < 0.1


def test_accuracy_fails_on_calibration_alone_when_the_confidence_is_no_longer_that_of_the_temperature(
    trained, judge
) -> None:
    """Scores close to zero predict the same classes, with hardly any confidence."""
    faint = with_last_weights(trained.proto(), lambda w: 0.02 * w)
    report = judge(faint, {"temperature": 1.0, "max_ece": 0.2}, min_sqnr_db=-99, max_class_drop=1)
    assert failed(report) == ["max_ece"]
    assert "at the temperature 1 of the source network" in report.failures[0].detail
    assert failed(judge(faint, {"temperature": 0.02, "max_ece": 0.2}, min_sqnr_db=-99, max_class_drop=1)) == []
    assert failed(judge(faint, {"temperature": 1.0}, min_sqnr_db=-99)) == ["max_class_drop"]


def test_accuracy_fails_on_sqnr_and_confidence_when_outputs_are_rescaled(trained, judge) -> None:
    report = judge(with_last_weights(trained.proto(), lambda w: 2 * w), min_sqnr_db=10)
    assert failed(report) == ["max_class_drop", "min_sqnr_db"]
    assert -3 < report.facts.sqnr_db <= 0  # the error is at least as large as the signal without its mean
    assert report.facts.flips == ()


@pytest.mark.parametrize("size", [1, 7, 99, 100])
def test_model_that_is_wrong_at_one_batch_size_alone_fails(trained, judge, size: int) -> None:
    proto = trained.proto()
    for node in proto.graph.node:
        node.output[:] = ["right" if name == "logits" else name for name in node.output]
    text = "m (float[n, 3, 32, 32] input, float[n, 10] right, int64[1] size) => (float[n, 10] logits) "
    text += "{ rows = Shape <start = 0, end = 1> (input) at = Equal(rows, size) w = Neg(right) "
    proto.graph.node.extend(onnx_text.model(text + "logits = Where(at, w, right) }").graph.node)
    proto.graph.initializer.append(numpy_helper.from_array(np.array([size]), "size"))
    report = judge(proto, {"batch_sizes": (1, 2, 7, 100)})
    assert failed(report) == ["wrong_batch_sizes"]
    assert report.failures[0].detail.startswith(f"'logits', batch size {size}: -")
    assert failed(judge(proto, {"batch_sizes": (2, 14)})) == []


def test_model_that_loses_one_sample_of_a_large_batch_fails(trained, judge) -> None:
    """One of 100 samples is 20 dB of noise, and a candidate with 25 dB may have as much as 13 dB."""
    proto = trained.proto()
    for node in proto.graph.node:
        node.output[:] = ["right" if name == "logits" else name for name in node.output]
    spread = Golden.load(trained.store.path(trained.golden)).test_outputs["logits"].std()
    text = "m (float[n, 3, 32, 32] input, float[n, 10] right, float step, int64 size, int64 first, int64 last, "
    text += "int64 unit, int64[1] axis) => (float[n, 10] logits) { steps = Div(right, step) even = Round(steps) "
    text += "rough = Mul(even, step) rows = Shape <start = 0, end = 1> (input) n = Squeeze(rows) "
    text += "places = Range(first, n, unit) at = Equal(places, last) full = Equal(n, size) gone = And(at, full) "
    text += "column = Unsqueeze(gone, axis) none = Sub(rough, rough) logits = Where(column, none, rough) }"
    numbers = {"size": 100, "first": 0, "last": 99, "unit": 1, "axis": [1]}
    stored = {"step": np.float32(spread / 5)} | {name: np.array(number) for name, number in numbers.items()}
    proto.graph.node.extend(onnx_text.model(text).graph.node)
    proto.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in stored.items())
    report = judge(proto, {"batch_sizes": (1, 100)})
    assert failed(report) == ["wrong_batch_sizes"]
    assert report.failures[0].detail.startswith("'logits', batch size 100: a sample has ")
    assert failed(judge(proto, {"batch_sizes": (1, 99)})) == []


def test_rare_alarm_that_never_sounds_in_a_call_of_one_sample_fails(trained, keep_model: Keep) -> None:
    """The first samples hardly show it, so that others are judged that do."""
    brightness = "m (float[n, 3, 32, 32] input, float[1] least, int64[1] one, int64[3] axes) => (bool[n] alarm) "
    brightness += "{ mean = ReduceMean <keepdims = 0> (input, axes) loud = Greater(mean, least) "
    golden, test = Golden.load(trained.store.path(trained.golden)), read_split(trained.store.path(trained.test))
    means = test.take(slice(0, len(test)))["input"].mean(axis=(1, 2, 3))
    least = np.sort(means)[-12]

    def judged(end: str) -> list[str]:
        proto = trained.proto()
        graph = onnx_text.model(brightness + end + " }").graph
        proto.graph.node.extend(graph.node)
        proto.graph.output.extend(graph.output)
        stored = {"least": np.array([least], np.float32), "one": np.array([1]), "axes": np.array([1, 2, 3])}
        proto.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in stored.items())
        out, model = keep_model(proto, trained.store)
        right = {"alarm": means > least}
        cases = {"real": GoldenCase(golden.real.inputs, golden.real.outputs)}
        Golden(cases, {**golden.test_outputs, **right}, golden.labels).save(out.folder / "golden.npz")
        kept = out.store_file(out.folder / "golden.npz")
        return failed(accuracy(AccuracyConfig(), out, model=model, golden=kept, test=trained.test))

    assert judged("alarm = Identity(loud)") == []
    quiet = "rows = Shape <start = 0, end = 1> (input) many = Greater(rows, one) alarm = And(loud, many)"
    assert judged(quiet) == ["wrong_batch_sizes"]


def test_accuracy_stores_a_drawing_of_both_models_predictions(trained, judge) -> None:
    sheet = pytest.importorskip("wings.drawings.prediction_sheet")
    drawn = judge(trained.proto()).artifacts["drawings"]
    assert Image.open(trained.store.path(drawn)).width == sheet.GAP + 3 * (sheet.CELL_WIDTH + sheet.GAP)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_accuracy_fails_when_outputs_are_not_finite(trained, judge, value: float) -> None:
    report = judge(with_last_weights(trained.proto(), lambda w: np.full_like(w, value)))
    assert "min_sqnr_db" in failed(report)
    assert not math.isfinite(report.facts.sqnr_db)


@pytest.fixture
def judge_unlabelled(trained, keep_model: Keep) -> Callable[..., Report[AccuracyFacts]]:
    """The same gate where nobody knows the truth."""

    def run(proto: onnx.ModelProto, **config: float) -> Report[AccuracyFacts]:
        out, model = keep_model(proto, trained.store)
        golden = Golden.load(trained.store.path(trained.golden))
        Golden(golden.cases, golden.test_outputs).save(out.folder / "golden.npz")
        kept = out.store_file(out.folder / "golden.npz")
        return accuracy(AccuracyConfig(**config), out, model=model, golden=kept, test=trained.test)

    return run


def test_agreement_decides_when_there_are_no_labels(trained, judge_unlabelled) -> None:
    same = judge_unlabelled(trained.proto())
    assert [check.name for check in same.checks] == [
        "accuracy.max_accuracy_drop",
        "accuracy.unresolved",
        "accuracy.max_class_drop",
        "accuracy.max_ranking_drop",
        "accuracy.min_sqnr_db",
        "accuracy.wrong_batch_sizes",
    ]
    assert (failed(same), same.facts.accuracy, same.facts.expected_loss.drop) == ([], None, 0)
    permuted = with_last_weights(trained.proto(), lambda w: np.roll(w, 1, axis=0))
    assert failed(judge_unlabelled(permuted, min_sqnr_db=-100)) == ["max_accuracy_drop", "max_ranking_drop"]


def test_noise_fails_alone_when_the_answer_stays_and_the_rest_drifts(trained, judge_unlabelled) -> None:
    drifted = lambda w: w + 20 * (w.mean(axis=0) if w.ndim == 2 else 0)  # noqa: E731 - the same for every class
    report = judge_unlabelled(with_last_weights(trained.proto(), drifted))
    assert failed(report) == ["min_sqnr_db"]
    assert report.facts.expected_loss.drop == 0


def test_unresolved_loss_is_accepted_or_rejected_as_configured(trained, judge) -> None:
    rng = np.random.default_rng(1)
    proto = with_last_weights(trained.proto(), lambda w: w + 0.02 * rng.standard_normal(w.shape))
    report = judge(proto, max_accuracy_drop=0.003)
    assert report.facts.change.drop <= 0.003 < report.facts.change.high
    check = next(c for c in report.checks if c.name == "accuracy.unresolved")
    assert (check.passed, check.severity) == (False, "warning")
    assert "test samples would settle it" in check.remedy
    assert failed(report) == []
    assert failed(judge(proto, max_accuracy_drop=0.003, unresolved="reject")) == ["unresolved"]
    assert failed(judge(proto, max_accuracy_drop=0.2, unresolved="reject")) == []


def test_gate_says_whether_a_loss_is_proven_and_rejects_one_above_the_limit_either_way(trained, judge) -> None:
    right = judge(trained.proto(), max_accuracy_drop=0.02).facts
    assert (right.verdict, right.images_to_resolve) == ("proven good", None)
    permuted = with_last_weights(trained.proto(), lambda w: np.roll(w, 1, axis=0))
    bad = judge(permuted, min_sqnr_db=-100)
    assert bad.facts.verdict == "proven bad"
    assert bad.failures[0].detail.startswith("proven bad: ")
    assert "test samples" not in bad.failures[0].remedy

    for unresolved in ("accept", "reject"):
        limit = bad.facts.change.drop - 0.001  # a little less than what is lost
        limits = {"min_sqnr_db": -100, "max_class_drop": 1, "max_ranking_drop": 1, "max_accuracy_drop": limit}
        open_ = judge(permuted, **limits, unresolved=unresolved)
        assert (open_.facts.verdict, failed(open_)) == ("not resolved", ["max_accuracy_drop"])
        assert open_.facts.images_to_resolve > 360
        check = open_.failures[0]
        assert check.detail.startswith("not resolved: ")
        assert f"about {open_.facts.images_to_resolve} test samples would settle it" in check.remedy


def test_flips_name_the_images_whose_answer_changed(trained, judge) -> None:
    assert judge(trained.proto()).facts.flips == ()
    facts = judge(with_last_weights(trained.proto(), lambda w: np.roll(w, 1, axis=0))).facts
    assert facts.differences == f"{len(facts.flips)} of 360 classes differ"
    assert facts.change.lost == sum(flip.before == flip.truth != flip.after for flip in facts.flips)
    assert facts.change.gained == sum(flip.after == flip.truth != flip.before for flip in facts.flips)
