"""Whether a trained model underfits or overfits, from its learning curves and its scores on training and test data."""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from gauntlet.core.frozen import Frozen
from gauntlet.frameworks.training import EpochMetrics

RISE = 0.05
"""A validation loss this share above its lowest has risen (Prechelt, Early Stopping: But When?, 1998: GL at 5 %)."""
FALLING = 0.02
"""Share by which the validation loss must fall in the last epoch for more epochs to be likely to help."""


class FitVerdict(Frozen):
    """The verdict on the weights that were kept, and why."""

    verdict: Literal["good fit", "overfitting", "underfitting"]
    reason: str


def judge_fit(
    metric: str,
    history: Sequence[EpochMetrics],
    *,
    train_score: float | None,
    test_score: float,
    wanted_score: float,
    max_gap: float,
) -> FitVerdict | None:
    """Return the verdict, or None where the scores on training samples are unknown.

    A model underfits when even its score on training samples is below the wanted one; it overfits when that score is
    more than `max_gap` above the one on test samples (Goodfellow et al., Deep Learning, 2016, section 5.2). The curves
    say what to do about it: epochs after the lowest validation loss, or a loss that was still falling.
    """
    if train_score is None:
        return None
    curves = "; ".join(filter(None, (_rise(history), _fall(history))))
    scores = f"{metric} {train_score:.4f} on training samples, {test_score:.4f} on test samples"
    verdict: Literal["good fit", "overfitting", "underfitting"] = "good fit"
    if train_score - test_score > max_gap:
        verdict = "overfitting"
    elif train_score < wanted_score:
        verdict, scores = "underfitting", f"{scores}, both wanted at {wanted_score:g} or above"
    return FitVerdict(verdict=verdict, reason=f"{scores}; {curves}" if curves else scores)


def _rise(history: Sequence[EpochMetrics]) -> str:
    """Return how the losses parted after the best epoch; "" if they did not."""
    if len(history) < 2:
        return ""
    best, last = min(history, key=lambda epoch: np.nan_to_num(epoch.validation_loss, nan=np.inf)), history[-1]
    rise = last.validation_loss / best.validation_loss - 1 if best.validation_loss > 0 else 0.0
    if not rise > RISE or not last.train_loss < best.train_loss:
        return ""
    after = f"after epoch {best.epoch}, whose weights were kept,"
    return f"{after} the validation loss rose by {100 * rise:.0f} % while the training loss fell"


def _fall(history: Sequence[EpochMetrics]) -> str:
    """Return that the validation loss was still falling at the end; "" if it was not."""
    if len(history) < 2:
        return ""
    losses = [epoch.validation_loss for epoch in history]
    falling = losses[-1] == min(losses) and losses[-1] < (1 - FALLING) * losses[-2]
    return "the validation loss was still falling in the last epoch: more epochs may help" if falling else ""
