"""Check the quality of the trained model before it is exported."""

from collections.abc import Iterator, Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from gauntlet.core.arrays import Array, NamedArrays, read_arrays
from gauntlet.core.artifact import Artifact
from gauntlet.core.errors import StageError
from gauntlet.core.kinds import kinds
from gauntlet.core.report import Check, Report
from gauntlet.core.signature import Signature
from gauntlet.core.workspace import Workspace
from gauntlet.datasets import read_split
from gauntlet.frameworks.training import EpochMetrics
from gauntlet.metrics.class_curves import RankedClassScore, rank_classes
from gauntlet.metrics.class_scores import class_scores, fitting_order
from gauntlet.metrics.confidence_calibration import calibrate_confidence
from gauntlet.problems import problem_of
from gauntlet.problems.base import Problem
from gauntlet.problems.classification import Classification
from tasks.evaluate.facts import (
    MAX_CLASSES,
    EvaluateConfig,
    EvaluateFacts,
    cross_validate,
    draw_confusion,
    largest_confusions,
)
from tasks.evaluate.fit_verdict import judge_fit

__all__ = ["EvaluateConfig", "EvaluateFacts", "evaluate"]

HELD_OUT = ("validation", "calibration")
"""Splits that may fit the temperature, the preferred one first."""
MAX_ORDERED = 2048  # classes; an assignment takes the cube of their number


def evaluate(
    config: EvaluateConfig,
    workspace: Workspace,
    *,
    predictions: Artifact,
    signature: Signature,
    history: tuple[EpochMetrics, ...] = (),
    model: Artifact | None = None,
    splits: Mapping[str, Artifact] | None = None,
) -> Report[EvaluateFacts]:
    """Score the predictions that the train stage stored, by the problem's own metrics.

    `history` are the epochs of the training. `model` and `splits` are needed for cross-validation, and `splits` for the
    artifact `drawings`: test images with the truth and the predictions, the worst ones and typical ones. For classes,
    the artifact `confusion` holds the counts, shape (classes, classes); `confusion_matrix` is an image of it, or, with
    many classes, of those with the most mistakes. With a score per class, `reliability_diagram` and `curves` are images
    of the calibration, and of ROC and precision-recall, where a package draws them.
    """
    problem = problem_of(signature)
    stored = read_arrays(workspace.path(predictions))
    train = problem.score(stored["train"], stored["train_labels"]) if "train" in stored else {}
    scores = problem.score(stored["test"], stored["test_labels"])
    is_classification = isinstance(problem, Classification)
    facts = EvaluateFacts(
        metric=problem.metric,
        accuracy=scores[problem.metric],
        train_accuracy=train.get(problem.metric),
        scores=scores,
        fit=judge_fit(
            problem.metric,
            history,
            train_score=train.get(problem.metric),
            test_score=scores[problem.metric],
            wanted_score=config.min_accuracy if is_classification else config.min_score or 0,
            max_gap=config.max_generalization_gap,
        ),
    )
    if config.folds is not None and not is_classification:
        raise StageError(f"evaluate.folds is for classification; the model predicts {signature.task}. Fix: remove it")
    artifacts: dict[str, Artifact] = {}
    if splits and "test" in splits:
        split = read_split(workspace.path(splits["test"]))
        for draw in kinds("sheet").values():
            artifacts |= draw(workspace, problem, split, stored["test_labels"], {"prediction": stored["test"]})
    fit = _labels_check(problem, stored["test"], stored["test_labels"])
    if is_classification:
        if config.folds is not None:
            facts = facts.replace(cross_validation=cross_validate(config.folds, workspace, model, splits or {}))
        facts, images = _score_classes(facts, workspace, stored, signature.labels)
        checks = (*_class_checks(config, facts), fit)
        return Report(facts=facts, checks=checks, artifacts=artifacts | images)
    detail, fix = f"{problem.metric} on the test samples", "train longer or on more data, or lower evaluate.min_score"
    limit = config.min_score
    score = () if limit is None else (Check.of("evaluate.min_score", facts.accuracy, ">=", limit, detail, fix),)
    if counts := problem.class_counts(stored["test"], stored["test_labels"]):
        facts = facts.replace(classes=tuple(RankedClassScore(**dict(s)) for s in counts.scores(signature.labels)))
    classes = _worst_class_checks(config, facts, config.recall_limit(signature.task), "look at drawings of this class")
    return Report(facts=facts, checks=(*score, *classes, *_gap_checks(config, facts), fit), artifacts=artifacts)


def _labels_check(problem: Problem, predictions: Array, truth: Array) -> Check:
    """Warn of labels that the model predicts hardly better than in a random order; refuse another order of classes."""
    labels, fit = problem.signature.labels, problem.beats_chance(predictions, truth)
    ordered = isinstance(problem, Classification) and truth.ndim == 1 and len(labels) <= MAX_ORDERED
    if order := fitting_order(truth, predictions, labels) if ordered else []:
        fix = f"name them so, in --labels FILE or data.labels: {', '.join(order[:MAX_CLASSES])}"
        fix += "; or renumber labels that are numbers" if len(order) <= MAX_CLASSES else " ..."
        return Check.of("evaluate.labels_fit", 0, "==", 1, "the model has its classes in another order", fix)
    detail = f"{problem.metric} is hardly better on the test labels than on the same labels in random orders"
    fix = "check that the labels are those of these samples, in the model's unit or order of classes; until then, "
    fix += "candidates are judged by their agreement with the FP32 model"
    return Check.of("evaluate.labels_fit", int(fit), "==", 1, "" if fit else detail, fix, severity="warning")


def _score_classes(
    facts: EvaluateFacts, workspace: Workspace, stored: NamedArrays, labels: tuple[str, ...]
) -> tuple[EvaluateFacts, dict[str, Artifact]]:
    """Add what is known of each class and of the confidence; store the confusion matrix and the images."""
    truth, predicted = (stored[name].astype(np.int64) for name in ("test_labels", "test"))
    folder, confusion = workspace.folder, np.zeros((len(labels), len(labels)), np.int64)
    known = (predicted >= 0) & (predicted < len(labels))
    np.add.at(confusion, (truth[known], predicted[known]), 1)
    classes = tuple(RankedClassScore(**dict(score)) for score in class_scores(truth, predicted, labels))
    images = {"confusion_matrix": draw_confusion(confusion, labels, folder / "confusion_matrix.png")}
    changes: dict[str, Any] = {"classes": classes}
    scores = stored.get("test_scores")
    if scores is not None and (calibration := calibrate_confidence(scores, truth, _held_out(stored))):
        changes["calibration"] = calibration
        images |= _drawn("reliability_diagram", calibration, folder)
        if len(labels) <= scores.shape[1]:
            changes["classes"], changes["ranking"] = rank_classes(scores, truth, classes)
        if ranking := changes.get("ranking"):
            images |= _drawn("curves", ranking, folder)
    facts = facts.replace(
        macro_f1=float(np.mean([score.f1 for score in classes])),
        confusion=tuple(map(tuple, confusion.tolist())) if len(labels) <= MAX_CLASSES else (),
        largest_confusions=largest_confusions(confusion, labels),
        **changes,
    )
    np.savez_compressed(folder / "confusion.npz", confusion=confusion, labels=np.array(labels))
    images["confusion"] = folder / "confusion.npz"
    return facts, {name: workspace.store_file(path) for name, path in images.items()}


def _drawn(name: str, value: Any, folder: Path) -> dict[str, Path]:
    """Return the image file that an installed package draws of a value (entry point `image.NAME`), by its name."""
    save = kinds("image").get(name)
    return {} if save is None else {name: save(value, folder / f"{name}.png")}


def _held_out(stored: NamedArrays) -> tuple[str, Array, Array] | None:
    """Return name, scores and classes of the split that fits the temperature."""
    name = next((name for name in HELD_OUT if f"{name}_scores" in stored), None)
    return None if name is None else (name, stored[f"{name}_scores"], stored[f"{name}_labels"])


def _class_checks(config: EvaluateConfig, facts: EvaluateFacts) -> tuple[Check, ...]:
    fix = "train longer or on more data, check the labels and preprocessing, or lower evaluate.min_accuracy"
    accuracy = Check.of("evaluate.min_accuracy", facts.accuracy, ">=", config.min_accuracy, remedy=fix)
    fix = "look at this class in the confusion matrix"
    worst = _worst_class_checks(config, facts, config.recall_limit("classification"), fix)
    more = (*_gap_checks(config, facts), *_calibration_checks(config, facts), *_fold_checks(config, facts))
    return accuracy, *worst, *more


def _worst_class_checks(config: EvaluateConfig, facts: EvaluateFacts, recall: float, fix: str) -> Iterator[Check]:
    for name, limit in (("recall", recall), ("precision", config.min_precision)) if facts.classes else ():
        worst = min(facts.classes, key=attrgetter(name))
        detail = f"worst class '{worst.label}', {worst.images} samples"
        yield Check.of(f"evaluate.min_{name}", getattr(worst, name), ">=", limit, detail, fix)


def _gap_checks(config: EvaluateConfig, facts: EvaluateFacts) -> tuple[Check, ...]:
    if facts.train_accuracy is None:
        return ()
    gap, limit = facts.train_accuracy - facts.accuracy, config.max_generalization_gap
    detail = f"{facts.metric} {facts.train_accuracy:.4f} on training samples, {facts.accuracy:.4f} on test samples"
    fix = "the model overfits: use more data, more weight decay or fewer epochs"
    return (Check.of("evaluate.max_generalization_gap", gap, "<=", limit, detail, fix),)


def _calibration_checks(config: EvaluateConfig, facts: EvaluateFacts) -> tuple[Check, ...]:
    """Check the calibration error where there is a limit; a model without a score per class has none, and fails."""
    if config.max_ece is None:
        return ()
    fit = facts.calibration
    if fit is None:
        detail, fix = "the model has no finite score per class", "remove evaluate.max_ece, or bring a model with scores"
    else:
        fitted = f"temperature {fit.temperature:.3g}, fitted on {fit.fitted_on}" if fit.temperature else ""
        detail = f"{fit.before.ece:.4f} before; {fitted}" if fitted else "no held-out split fits a temperature"
        fix = "fit the temperature on more held-out samples, train with label smoothing, or raise evaluate.max_ece"
    return (Check.of("evaluate.max_ece", None if fit is None else fit.best.ece, "<=", config.max_ece, detail, fix),)


def _fold_checks(config: EvaluateConfig, facts: EvaluateFacts) -> tuple[Check, ...]:
    folds = facts.cross_validation
    if folds is None:
        return ()
    detail = f"mean of {len(folds.accuracies)} parts of the training split, 95 % interval {folds.low:.4f} to "
    detail += f"{folds.high:.4f}; worst part {min(folds.accuracies):.4f}"
    fix = "train on more data, or lower evaluate.min_accuracy"
    return (Check.of("evaluate.cross_validated_accuracy", folds.mean, ">=", config.min_accuracy, detail, fix),)
