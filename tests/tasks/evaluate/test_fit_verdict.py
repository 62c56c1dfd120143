"""Learning curves with a verdict: the scores decide, the curves say what to do."""

import math
import re
from dataclasses import dataclass
from typing import Any

import pytest

from tasks.evaluate.fit_verdict import FitVerdict, judge_fit


@dataclass(frozen=True)
class Epoch:
    epoch: int
    train_loss: float
    validation_loss: float


def epochs(train: list[float], validation: list[float]) -> list[Epoch]:
    return [Epoch(i, t, v) for i, (t, v) in enumerate(zip(train, validation, strict=True), 1)]


def judged(history: list[Epoch], **changes: Any) -> FitVerdict:
    scores = {"train_score": 0.97, "test_score": 0.96, "wanted_score": 0.9, "max_gap": 0.05, **changes}
    found = judge_fit("accuracy", history, **scores)
    assert found is not None
    return found


FLAT = epochs([1.0, 0.5, 0.3, 0.29], [1.1, 0.6, 0.4, 0.4])
RISING = epochs([1.0, 0.5, 0.2, 0.1], [1.1, 0.6, 0.7, 0.9])
FALLING = epochs([1.0, 0.8, 0.6], [1.1, 0.9, 0.7])


@pytest.mark.parametrize(
    ("curve", "scores", "verdict", "said"),
    [
        (FLAT, (0.97, 0.96), "good fit", r"^accuracy 0\.9700 on training samples, 0\.9600 on test samples$"),
        (RISING, (1.0, 0.8), "overfitting", "after epoch 2, whose weights were kept, the validation loss rose by 50 %"),
        (FALLING, (0.7, 0.69), "underfitting", "both wanted at 0.9 or above.*more epochs may help"),
        (RISING, (0.97, 0.96), "good fit", "after epoch 2"),
    ],
)
def test_verdict_is_that_of_the_scores_and_the_curve_is_told(curve, scores, verdict: str, said: str) -> None:
    found = judged(curve, train_score=scores[0], test_score=scores[1])
    assert found.verdict == verdict
    assert re.search(said, found.reason)


def test_rise_of_both_losses_is_no_overfitting() -> None:
    assert "rose" not in judged(epochs([0.5, 0.9], [0.6, 1.0])).reason


def test_without_scores_on_training_samples_there_is_no_verdict() -> None:
    assert judge_fit("r2", FLAT, train_score=None, test_score=0.5, wanted_score=0, max_gap=1) is None


def test_losses_that_are_no_numbers_are_left_out_and_no_curve_is_needed() -> None:
    assert judged(epochs([1.0, 0.5, 0.4], [math.nan, 0.6, 0.6])).verdict == "good fit"
    assert judged([]).verdict == "good fit"
