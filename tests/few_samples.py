"""A few samples of each split, what the check of a training says that has diverged, and one that is ended."""

from collections.abc import Callable, Mapping

import numpy as np

from gauntlet.core.report import Report
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.splits import ArraySplit, Dataset, require_labels
from tasks.train.facts import TrainFacts

Change = Callable[[str, np.ndarray], None]


def few_samples(data: Dataset, sizes: Mapping[str, int], change: Change | None = None) -> dict[str, ArraySplit]:
    """Return as many samples a split, after `change(name, inputs)` has damaged them."""
    splits = {}
    for name, size in sizes.items():
        inputs = data.splits[name].take(slice(0, size))["input"].copy()
        if change:
            change(name, inputs)
        splits[name] = ArraySplit({"input": inputs}, require_labels(data.splits[name])[:size])
    return splits


def not_finite(split: str, value: float = np.nan) -> Change:
    """Return the change that puts the value into an image of the split."""

    def change(name: str, inputs: np.ndarray) -> None:
        if name == split:
            inputs[7].flat[0] = value

    return change


def failing_loss(report: Report[TrainFacts]) -> float:
    (check,) = report.failures
    assert check.name == "train.loss"
    assert "lower train.learning_rate" in check.remedy
    assert report.artifacts == {}
    return check.value


def ended_after(epoch: int, out: Workspace) -> Workspace:
    """Return the same workspace of an owner who is ended as soon as that epoch is done."""

    class Ended(Workspace):
        def progress(self, done: int, total: int, unit: str, **metrics: float) -> None:
            super().progress(done, total, unit, **metrics)
            if (unit, done) == ("epoch", epoch):
                raise KeyboardInterrupt

    return Ended(out.store, out.folder)
