"""The books that every training keeps: best epoch, patience, and what a restart needs."""

import json
import math
from collections.abc import Sequence

import numpy as np
import pytest

from frameworks.epochs import History, shuffled
from gauntlet.frameworks.training import EpochMetrics, LoopConfig


def history(losses: Sequence[float], *, epochs: int = 9, patience: int = 2) -> History:
    found = History(LoopConfig(epochs=epochs, patience=patience))
    for number, loss in enumerate(losses, 1):
        parts = {"train_loss": 1.0, "validation_accuracy": 0.5, "learning_rate": 0.1}
        found.epochs.append(EpochMetrics(epoch=number, validation_loss=loss, **parts))
        found.last_loss = 1.0
    return found


@pytest.mark.parametrize(
    ("losses", "best"),
    [([], 0), ([math.nan], 0), ([math.nan, 2], 2), ([3, 1, 2], 2), ([2, 1, 1], 2), ([math.inf, 5], 2)],
)
def test_best_epoch_is_the_first_with_the_lowest_finite_loss(losses: list[float], best: int) -> None:
    assert history(losses).best_epoch == best


@pytest.mark.parametrize(
    ("losses", "stopped"),
    [([1, 2], False), ([1, 2, 3], True), ([1, 1, 1], True), ([2, 3, 1], False), ([math.nan, math.nan], True)],
)
def test_patience_ends_a_training_whose_loss_does_not_fall(losses: list[float], stopped: bool) -> None:
    found = history(losses)
    assert (found.stopped_early, found.over) == (stopped, stopped)


def test_patience_does_not_end_what_is_over_or_has_only_begun() -> None:
    assert not history([math.nan], patience=1).over
    done = history([1, 2, 3], epochs=3)
    assert (done.over, done.stopped_early) == (True, False)


def test_restart_knows_what_was_written_down_as_json() -> None:
    before, after = history([math.nan, 2, 3]), history([])
    after.restore(json.loads(json.dumps(before.dump())))
    assert after.facts()["best_epoch"] == 2
    assert math.isnan(after.epochs[0].validation_loss)
    assert json.dumps(after.dump()) == json.dumps(before.dump())


@pytest.mark.parametrize(
    ("losses", "last", "passed", "where"),
    [
        ([2, 1], 1, True, "epoch 2"),
        ([2], math.nan, False, "epoch 2, training samples"),
        ([math.nan, math.nan], 1, False, "epoch 2, validation samples"),
    ],
)
def test_check_names_the_epoch_whose_loss_decides(losses: list[float], last: float, passed: bool, where: str) -> None:
    found = history(losses)
    found.last_loss = last
    check = found.check("prune")
    assert (check.name, check.passed, check.detail) == ("prune.loss", passed, where)
    assert bool(check.remedy) == (not passed)


@pytest.mark.parametrize(("count", "sizes"), [(8, [4, 4]), (9, [4, 4, 2]), (10, [4, 4, 2])])
def test_batches_hold_every_sample_and_none_is_alone(count: int, sizes: list[int]) -> None:
    parts = list(shuffled(count, 4, np.random.default_rng(0)))
    assert [len(part) for part in parts] == sizes
    assert set(np.concatenate(parts)) == set(range(count))
