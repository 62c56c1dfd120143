"""The quality gate, on predictions whose scores are known, and on the calibration of their confidence."""

import tracemalloc
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gauntlet.core.report import Report
from gauntlet.core.signature import Signature
from gauntlet.core.workspace import Workspace
from tasks.evaluate import EvaluateConfig, EvaluateFacts, evaluate
from tasks.evaluate.facts import draw_confusion

LABELS = ("cat", "dog", "owl")
SIGNATURE = Signature(task="classification", layout="none", inputs=(), outputs=(), labels=LABELS)
Score = Callable[..., Report[EvaluateFacts]]
TRUTH = [0] * 10 + [1] * 10 + [2] * 20


@pytest.fixture
def score(workspace: Callable[..., Workspace]) -> Score:
    def run(predictions: list[int], train_right: float = 1.0, **config: float) -> Report[EvaluateFacts]:
        out = workspace()
        train = np.zeros(100, np.int64)
        train[round(100 * train_right) :] = 1
        arrays = {"train": train, "train_labels": np.zeros(100, np.int64), "test_labels": np.array(TRUTH)}
        np.savez(out.folder / "predictions.npz", test=np.array(predictions), **arrays)
        predictions = out.store_file(out.folder / "predictions.npz")
        return evaluate(EvaluateConfig(**config), out, predictions=predictions, signature=SIGNATURE)

    return run


def failed(report: Report[EvaluateFacts]) -> list[str]:
    return [check.name.removeprefix("evaluate.") for check in report.failures]


def test_evaluate_passes_when_every_prediction_is_right(score: Score) -> None:
    report = score(TRUTH)
    assert failed(report) == []
    assert (report.facts.accuracy, report.facts.macro_f1) == (1.0, 1.0)
    assert report.facts.confusion == ((10, 0, 0), (0, 10, 0), (0, 0, 20))


def test_evaluate_fails_on_accuracy_alone_when_many_predictions_are_wrong(score: Score) -> None:
    predictions = [0] * 9 + [1] + [1] * 9 + [0] + [2] * 18 + [0] * 2
    report = score(predictions, train_right=0.9)
    assert report.facts.accuracy == pytest.approx(0.9)
    assert failed(report) == ["min_accuracy"]


@pytest.mark.parametrize(
    ("predictions", "limits", "check", "value"),
    [
        (TRUTH[:10] + [1] * 8 + [0] * 2 + TRUTH[20:], {}, "min_recall", 0.8),
        (TRUTH[:20] + [1] * 3 + [2] * 17, {"min_accuracy": 0.9, "min_precision": 0.8}, "min_precision", 10 / 13),
    ],
)
def test_evaluate_fails_on_one_class_alone_and_names_it(
    score: Score, predictions: list[int], limits: dict[str, float], check: str, value: float
) -> None:
    report = score(predictions, 0.95, **limits)
    assert failed(report) == [check]
    assert report.failures[0].value == pytest.approx(value)
    assert "'dog', 10 samples" in report.failures[0].detail


def test_evaluate_fails_on_the_gap_alone_when_the_model_overfits(score: Score) -> None:
    predictions = [1, *TRUTH[1:10], 0, *TRUTH[11:20], 0, *TRUTH[21:]]
    report = score(predictions, train_right=1.0, min_accuracy=0.9)
    assert failed(report) == ["max_generalization_gap"]
    assert report.failures[0].value == pytest.approx(0.075)
    assert failed(score(predictions, train_right=0.95, min_accuracy=0.9)) == []


def test_evaluate_counts_every_image_once_when_predictions_are_mixed(score: Score) -> None:
    predictions = np.random.default_rng(0).integers(0, 3, len(TRUTH)).tolist()
    facts = score(predictions).facts
    confusion = np.array(facts.confusion)
    assert confusion.sum(axis=1).tolist() == [10, 10, 20]
    assert confusion.sum(axis=0).tolist() == np.bincount(predictions, minlength=3).tolist()
    assert np.trace(confusion) / confusion.sum() == pytest.approx(facts.accuracy)
    recalls = np.diag(confusion) / confusion.sum(axis=1)
    assert [c.recall for c in facts.classes] == pytest.approx(recalls.tolist())
    assert [(c.label, c.images) for c in facts.classes] == [("cat", 10), ("dog", 10), ("owl", 20)]


def test_another_order_of_classes_fails_and_is_named_unless_they_are_only_confused(score: Score) -> None:
    limits = {"min_accuracy": 0, "min_recall": 0}
    for order, names in (((0, 2, 1), "cat, owl, dog"), ((1, 2, 0), "owl, cat, dog")):
        report = score([order[label] for label in TRUTH[:-2]] + [order[0], order[1]], **limits)
        assert f"data.labels: {names}; or renumber" in str(report.failures[-1])
    for predictions in ([0] * 20 + [2] * 20, [0] * 10 + [2] * 23 + [1] * 7, [2, 0, 1, 1] * 10):
        assert "labels_fit" not in failed(score(predictions, **limits))


def test_evaluate_scores_zero_when_a_class_is_never_predicted(score: Score) -> None:
    report = score([0] * 10 + [0] * 10 + [2] * 20)
    dog = report.facts.classes[1]
    assert (dog.precision, dog.recall, dog.f1) == (0, 0, 0)
    assert "min_recall" in failed(report)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("names", [("a$x_$", "$\\frac$"), ("\u732b", "\u72ac")])
def test_confusion_matrix_takes_any_names_of_classes(tmp_path: Path, names: tuple[str, str]) -> None:
    with Image.open(draw_confusion(np.eye(2, dtype=np.int64), names, tmp_path / "c.png")) as image:
        assert image.width > 100


def test_evaluate_draws_the_confusion_matrix_when_done(score: Score, workspace: Callable[..., Workspace]) -> None:
    artifact = score(TRUTH).artifacts["confusion_matrix"]
    image = workspace().path(artifact).read_bytes()
    assert artifact.name == "confusion_matrix.png"
    assert image.startswith(b"\x89PNG\r\n\x1a\n")
    assert image.rstrip().endswith(b"IEND\xaeB`\x82")
    assert score(TRUTH).artifacts["confusion_matrix"] == artifact


def test_thousand_classes_are_scored_with_their_largest_confusions(workspace: Callable[..., Workspace]) -> None:
    out, classes = workspace(), 1000
    truth = np.repeat(np.arange(classes), 3)
    predicted = np.where(np.arange(truth.size) % 30 == 0, (truth + 1) % classes, truth)
    predicted[truth == 7] = 9
    np.savez(out.folder / "predictions.npz", test=predicted, test_labels=truth)
    labels = tuple(f"class {i}" for i in range(classes))
    kept = out.store_file(out.folder / "predictions.npz")
    report = evaluate(EvaluateConfig(), out, predictions=kept, signature=SIGNATURE.replace(labels=labels))
    assert len(report.facts.classes) == classes
    assert report.facts.confusion == ()
    first = report.facts.largest_confusions[0]
    assert (first.label, first.prediction, first.images) == ("class 7", "class 9", 3)
    assert len(report.facts.largest_confusions) == 20
    with np.load(out.path(report.artifacts["confusion"])) as file:
        assert (file["confusion"].shape, file["confusion"][7, 9]) == ((classes, classes), 3)
    assert len(report.model_dump_json()) < 200_000


@pytest.mark.nightly
def test_thousand_classes_with_scores_stay_within_bounds(workspace: Callable[..., Workspace]) -> None:
    """The promise of the stage: under 300 MB, and a report that a page can hold."""
    out, classes, rng = workspace(), 1000, np.random.default_rng(0)
    truth = np.arange(4_000) % classes
    scores = rng.normal(0, 1, (truth.size, classes)).astype(np.float32)
    scores[np.arange(truth.size), truth] += 5
    arrays = {f"{name}_{part}": array for name in ("validation", "test") for part, array in
              (("labels", truth), ("scores", scores))}  # fmt: skip
    np.savez(out.folder / "predictions.npz", test=scores.argmax(axis=1), **arrays)
    labels = tuple(f"class {i}" for i in range(classes))
    kept = out.store_file(out.folder / "predictions.npz")
    tracemalloc.start()
    report = evaluate(EvaluateConfig(), out, predictions=kept, signature=SIGNATURE.replace(labels=labels))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 300e6
    assert len(report.model_dump_json()) < 250_000
    assert len(report.facts.ranking.curves) == 5
    assert all(one.roc_auc is not None for one in report.facts.classes)


@pytest.mark.parametrize(("limit", "blocked"), [(0.0, ["min_score"]), (None, [])])
def test_values_that_do_not_fit_the_labels_stop_only_a_run_with_a_limit(
    workspace: Callable[..., Workspace], limit: float | None, blocked: list[str]
) -> None:
    out, values = workspace(), np.random.default_rng(0).normal(size=(60, 1))
    np.savez(out.folder / "predictions.npz", test=values, test_labels=values[::-1])
    signature = SIGNATURE.replace(task="regression", labels=("y",))
    stored = out.store_file(out.folder / "predictions.npz")
    report = evaluate(EvaluateConfig(min_score=limit), out, predictions=stored, signature=signature)
    assert failed(report) == blocked
    assert not report.checks[-1].passed


LIMITS = {"min_accuracy": 0, "min_recall": 0, "max_generalization_gap": 1}


def predictions(factor: float, splits: tuple[str, ...], count: int = 3000) -> dict[str, np.ndarray]:
    """Scores that are calibrated, times a factor, of some splits and of the test split."""
    arrays = {}
    for seed, split in enumerate((*splits, "test")):
        rng = np.random.default_rng(seed)
        logits = rng.normal(0, 2, (count, len(LABELS)))
        arrays[f"{split}_labels"] = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
        arrays |= {f"{split}_scores": (factor * logits).astype(np.float32), split: logits.argmax(axis=1)}
    return arrays


@pytest.fixture
def score_calibrated(workspace: Callable[..., Workspace]) -> Score:
    def run(arrays: Mapping[str, np.ndarray], **config: float) -> Report[EvaluateFacts]:
        out = workspace()
        np.savez(out.folder / "predictions.npz", **arrays)
        stored = out.store_file(out.folder / "predictions.npz")
        return evaluate(EvaluateConfig(**{**LIMITS, **config}), out, predictions=stored, signature=SIGNATURE)

    return run


def test_overconfident_model_fails_without_held_out_samples_and_passes_with_them(score_calibrated: Score) -> None:
    alone = score_calibrated(predictions(4, ()), max_ece=0.05)
    assert [check.name for check in alone.failures] == ["evaluate.max_ece"]
    assert "no held-out split" in alone.failures[0].detail
    assert "Fix: fit the temperature on more held-out samples" in str(alone.failures[0])
    scaled = score_calibrated(predictions(4, ("validation",)), max_ece=0.05)
    scaled.raise_if_blocked()
    found = scaled.facts.calibration
    assert found.temperature == pytest.approx(4, rel=0.1)
    assert found.after.ece < 0.05 < found.before.ece


def test_error_above_the_limit_fails_after_scaling_too(score_calibrated: Score) -> None:
    report = score_calibrated(predictions(1, ("validation",)), max_ece=0.0001)
    assert [check.name for check in report.failures] == ["evaluate.max_ece"]
    assert "temperature" in report.failures[0].detail


def test_without_a_limit_nothing_is_judged(score_calibrated: Score) -> None:
    assert "evaluate.max_ece" not in [check.name for check in score_calibrated(predictions(9, ())).checks]


@pytest.mark.parametrize(("splits", "chosen"), [(("validation", "calibration"), "validation"), (("calibration",),) * 2])
def test_temperature_is_fitted_on_validation_else_on_calibration_samples(
    score_calibrated: Score, splits: tuple[str, ...], chosen: str | tuple[str, ...]
) -> None:
    found = score_calibrated(predictions(2, splits)).facts.calibration
    assert found.fitted_on == (chosen if isinstance(chosen, str) else chosen[0])


def test_model_that_predicts_classes_alone_has_no_confidence_and_fails_a_limit(score_calibrated: Score) -> None:
    arrays = {name: array for name, array in predictions(1, ()).items() if not name.endswith("_scores")}
    report = score_calibrated(arrays, max_ece=0.5)
    assert (report.facts.calibration, report.facts.ranking) == (None, None)
    assert [check.name for check in report.failures] == ["evaluate.max_ece"]
    assert "missing must be <= 0.5" in str(report.failures[0])


def test_images_of_calibration_and_curves_are_kept(
    score_calibrated: Score, workspace: Callable[..., Workspace]
) -> None:
    pytest.importorskip("wings.drawings")
    report = score_calibrated(predictions(2, ("validation",)))
    for name in ("reliability_diagram", "curves"):
        content = workspace().path(report.artifacts[name]).read_bytes()
        assert content.startswith(b"\x89PNG\r\n\x1a\n")
    assert score_calibrated(predictions(2, ("validation",))).artifacts == report.artifacts


def test_more_scores_than_labels_are_calibrated_and_ranked(score_calibrated: Score) -> None:
    arrays = predictions(1, ())
    arrays["test_scores"] = np.pad(arrays["test_scores"], ((0, 0), (0, 2)), constant_values=-9)
    facts = score_calibrated(arrays).facts
    assert facts.calibration is not None
    assert [one.label for one in facts.classes] == list(LABELS)
