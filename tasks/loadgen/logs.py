"""LoadGen's log files, read: the verdict, every figure, and the answers that it noted down."""

import json
from pathlib import Path

import numpy as np
from pydantic import Field

from gauntlet.core.errors import StageError
from gauntlet.core.frozen import Frozen, JsonObject, Number
from gauntlet.datasets.golden import Golden
from gauntlet.metrics.error_metrics import predicted_classes

PREFIX = ":::MLLOG "
CONDITIONS = {
    "result_min_duration_met": "min duration not met",
    "result_min_queries_met": "min queries not met",
    "early_stopping_met": "early stopping not met",
    "result_perf_constraints_met": "performance constraints not met",
}


class Scores(Frozen):
    """The answers that LoadGen noted down in accuracy mode."""

    samples: int
    accuracy: Number | None = Field(description="None where the samples have no labels")
    top1_agreement: Number = Field(description="share of samples with the source model's answer")


def figures(folder: Path) -> JsonObject:
    """Return the results of a run: the keys and values of LoadGen's detailed log.

    Raises:
        StageError: when there is none.
    """
    found: JsonObject = {}
    try:
        lines = (folder / "mlperf_log_detail.txt").read_text().splitlines()
    except OSError as error:
        raise StageError(f"LoadGen left no log: {error}") from error
    for line in lines:
        if line.startswith(PREFIX):
            entry = json.loads(line.removeprefix(PREFIX))
            if (
                entry["key"].startswith(("result_", "early_stopping_", "effective_"))
                or entry["key"] == "qsl_reported_total_count"
            ):
                found[entry["key"]] = entry["value"]
    return found


def unmet_conditions(found: JsonObject) -> tuple[str, ...]:
    """Return the conditions of a valid run that were not met."""
    return tuple(text for key, text in CONDITIONS.items() if found.get(key) is False)


def answers(folder: Path, truth: Golden) -> Scores:
    """Compare the answers of an accuracy run with the labels, and with the source model's answers.

    Raises:
        StageError: when LoadGen noted down no answers, or not one of each sample.
    """
    expected = next(iter(truth.test_outputs.values()))
    entries = {e["qsl_idx"]: e["data"] for e in json.loads((folder / "mlperf_log_accuracy.json").read_text() or "[]")}
    if entries.keys() != set(range(len(expected))):
        raise StageError(f"LoadGen noted down the answers to {len(entries)} of {len(expected)} samples")
    raw = b"".join(bytes.fromhex(entries[i]) for i in range(len(expected)))
    try:
        actual = np.frombuffer(raw, dtype=expected.dtype).reshape(expected.shape)
    except ValueError as error:
        told = f"the answers are not of type {expected.dtype} and shape {expected.shape}, as the source's are"
        raise StageError(f"LoadGen's accuracy mode: {told}") from error
    ours, theirs = predicted_classes(actual), predicted_classes(expected)
    if ours is None or theirs is None:
        raise StageError("the model's first output names no classes, so accuracy mode has nothing to compare")
    labels = truth.labels
    return Scores(
        samples=len(expected),
        accuracy=None if labels is None else float(np.mean(ours == labels)),
        top1_agreement=float(np.mean(ours == theirs)),
    )
