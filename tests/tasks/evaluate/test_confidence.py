"""Calibration of the confidence in `evaluate`: the gate, the images, and models without scores."""

from collections.abc import Callable, Mapping

import numpy as np
import pytest

from gauntlet.core.report import Report
from gauntlet.core.signature import Signature
from gauntlet.core.workspace import Workspace
from tasks.evaluate import EvaluateConfig, EvaluateFacts, evaluate

LABELS = ("cat", "dog", "owl")
SIGNATURE = Signature(task="classification", layout="none", inputs=(), outputs=(), labels=LABELS)
LIMITS = {"min_accuracy": 0, "min_recall": 0, "max_generalization_gap": 1}
Score = Callable[..., Report[EvaluateFacts]]


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
def score(workspace: Callable[..., Workspace]) -> Score:
    def run(arrays: Mapping[str, np.ndarray], **config: float) -> Report[EvaluateFacts]:
        out = workspace()
        np.savez(out.folder / "predictions.npz", **arrays)
        stored = out.store_file(out.folder / "predictions.npz")
        return evaluate(EvaluateConfig(**{**LIMITS, **config}), out, predictions=stored, signature=SIGNATURE)

    return run


def test_overconfident_model_fails_without_held_out_samples_and_passes_with_them(score: Score) -> None:
    alone = score(predictions(4, ()), max_ece=0.05)
    assert [check.name for check in alone.failures] == ["evaluate.max_ece"]
    assert "no held-out split" in alone.failures[0].detail
    assert "Fix: fit the temperature on more held-out samples" in str(alone.failures[0])
    scaled = score(predictions(4, ("validation",)), max_ece=0.05)
    scaled.raise_if_blocked()
    found = scaled.facts.calibration
    assert found.temperature == pytest.approx(4, rel=0.1)
    assert found.after.ece < 0.05 < found.before.ece


def test_error_above_the_limit_fails_after_scaling_too(score: Score) -> None:
    report = score(predictions(1, ("validation",)), max_ece=0.0001)
    assert [check.name for check in report.failures] == ["evaluate.max_ece"]
    assert "temperature" in report.failures[0].detail


def test_without_a_limit_nothing_is_judged(score: Score) -> None:
    assert "evaluate.max_ece" not in [check.name for check in score(predictions(9, ())).checks]


@pytest.mark.parametrize(("splits", "chosen"), [(("validation", "calibration"), "validation"), (("calibration",),) * 2])
def test_temperature_is_fitted_on_validation_else_on_calibration_samples(
    score: Score, splits: tuple[str, ...], chosen: str | tuple[str, ...]
) -> None:
    found = score(predictions(2, splits)).facts.calibration
    assert found.fitted_on == (chosen if isinstance(chosen, str) else chosen[0])


def test_model_that_predicts_classes_alone_has_no_confidence_and_fails_a_limit(score: Score) -> None:
    arrays = {name: array for name, array in predictions(1, ()).items() if not name.endswith("_scores")}
    report = score(arrays, max_ece=0.5)
    assert (report.facts.calibration, report.facts.ranking) == (None, None)
    assert [check.name for check in report.failures] == ["evaluate.max_ece"]
    assert "missing must be <= 0.5" in str(report.failures[0])


def test_images_of_calibration_and_curves_are_kept(score: Score, workspace: Callable[..., Workspace]) -> None:
    report = score(predictions(2, ("validation",)))
    for name in ("reliability_diagram", "curves"):
        content = workspace().path(report.artifacts[name]).read_bytes()
        assert content.startswith(b"\x89PNG\r\n\x1a\n")
    assert score(predictions(2, ("validation",))).artifacts == report.artifacts


def test_more_scores_than_labels_are_calibrated_and_ranked(score: Score) -> None:
    arrays = predictions(1, ())
    arrays["test_scores"] = np.pad(arrays["test_scores"], ((0, 0), (0, 2)), constant_values=-9)
    facts = score(arrays).facts
    assert facts.calibration is not None
    assert [one.label for one in facts.classes] == list(LABELS)
