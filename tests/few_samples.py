"""A few samples of each split, and what the check of a training says that has diverged."""

from collections.abc import Callable, Mapping

import numpy as np

from gauntlet.core.report import Report
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


def failing_loss(report: Report[TrainFacts]) -> float:
    (check,) = report.failures
    assert check.name == "train.loss"
    assert "lower train.learning_rate" in check.remedy
    assert report.artifacts == {}
    return check.value
