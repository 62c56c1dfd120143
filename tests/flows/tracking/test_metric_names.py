"""What MLflow shows of a stage."""

import pytest
from mlflow.utils.validation import _validate_metric_name, _validate_tag

from flows.tracking.events import note
from flows.tracking.metric_names import class_metrics, legal
from gauntlet.metrics.class_curves import RankedClassScore
from tasks.evaluate import EvaluateFacts


def sent_class_metrics(*labels: str) -> dict[str, float]:
    """Return the metrics of these classes by the names that MLflow gets; each has three scores."""
    scores = tuple(RankedClassScore(label=label, precision=0.5, recall=0.25, f1=1 / 3, images=9) for label in labels)
    facts = EvaluateFacts(accuracy=0.5, train_accuracy=None, classes=scores)
    return {legal(name): value for name, value in class_metrics(facts).items()}


def test_class_names_of_any_script_stay_as_they_are() -> None:
    labels = "零一二三四五六七八九"
    metrics = sent_class_metrics(*labels)
    assert len(metrics) == 3 * len(labels)
    assert metrics["class.七.recall"] == 0.25


@pytest.mark.parametrize(
    "labels",
    [
        ("C++", "C#", "C##", "C"),
        ("a/b", "a//b", "/a/b", "a/b/"),
        (".", "..", "/", "_"),
        ("x" * 300, "x" * 301, "x" * 200),
    ],
    ids=["signs", "slashes", "dots", "long"],
)
def test_classes_never_share_a_name_and_mlflow_takes_each(labels: tuple[str, ...]) -> None:
    metrics = sent_class_metrics(*labels)
    assert len(metrics) == 3 * len(labels)
    for name in metrics:
        _validate_metric_name(name)


def test_name_of_a_class_that_mlflow_refuses_is_the_same_beside_other_classes() -> None:
    assert sent_class_metrics("C++").keys() <= sent_class_metrics("C#", "C++").keys()


@pytest.mark.parametrize("rows", [10, 3000])
def test_note_with_the_report_is_as_long_as_mlflow_keeps_it(rows: int) -> None:
    report = "| row |\n" * rows
    assert _validate_tag("mlflow.note.content", note(report)).value == note(report)
    assert (note(report) == report) == (rows == 10)
