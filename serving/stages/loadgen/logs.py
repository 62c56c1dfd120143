"""Read LoadGen's log files: the verdict, every result, and the recorded outputs."""

import json
from pathlib import Path

import numpy as np
from pydantic import Field

from gauntlet.core.errors import StageError
from gauntlet.core.frozen import Frozen, JsonObject, Number
from gauntlet.datasets.golden import Golden
from gauntlet.datasets.truth import class_indices
from gauntlet.metrics.error_metrics import predicted_classes

PREFIX = ":::MLLOG "
RESULTS = ("result_", "early_stopping_", "effective_", "qsl_reported_total_count")
"""How the keys of results begin."""
CONDITIONS = {
    "result_min_duration_met": "min duration not met",
    "result_min_queries_met": "min queries not met",
    "early_stopping_met": "early stopping not met",
    "result_perf_constraints_met": "performance constraints not met",
}


class Scores(Frozen):
    """Scores of the outputs that LoadGen recorded in accuracy mode."""

    samples: int
    accuracy: Number | None = Field(description="None without labels")
    top1_agreement: Number = Field(description="share of samples predicted as by the source model")


def figures(folder: Path) -> JsonObject:
    """Return the results of a run: the keys and values of LoadGen's detailed log.

    Raises:
        StageError: when there is no log.
    """
    try:
        lines = (folder / "mlperf_log_detail.txt").read_text().splitlines()
    except OSError as error:
        raise StageError(f"LoadGen left no log: {error}") from error
    entries = [json.loads(line.removeprefix(PREFIX)) for line in lines if line.startswith(PREFIX)]
    return {entry["key"]: entry["value"] for entry in entries if entry["key"].startswith(RESULTS)}


def unmet_conditions(summary: JsonObject) -> tuple[str, ...]:
    """Return the conditions of a valid run that were not met."""
    return tuple(text for key, text in CONDITIONS.items() if summary.get(key) is False)


def score_outputs(folder: Path, golden: Golden) -> Scores:
    """Compare the outputs of an accuracy run with the labels, and with the source model's outputs.

    Raises:
        StageError: when LoadGen did not record one output of each sample, or outputs that predict no class.
    """
    expected = next(iter(golden.test_outputs.values()))
    entries = {e["qsl_idx"]: e["data"] for e in json.loads((folder / "mlperf_log_accuracy.json").read_text() or "[]")}
    if entries.keys() != set(range(len(expected))):
        raise StageError(f"LoadGen recorded the outputs of {len(entries)} of {len(expected)} samples")
    raw = b"".join(bytes.fromhex(entries[i]) for i in range(len(expected)))
    try:
        actual = np.frombuffer(raw, dtype=expected.dtype).reshape(expected.shape)
    except ValueError as error:
        problem = f"the outputs are not of type {expected.dtype} and shape {expected.shape}, as the source model's are"
        raise StageError(f"LoadGen's accuracy mode: {problem}") from error
    predicted, reference = predicted_classes(actual), predicted_classes(expected)
    truth = class_indices(golden.labels)
    if predicted is None or reference is None:
        raise StageError("the model's first output predicts no classes, so accuracy mode has nothing to compare")
    return Scores(
        samples=len(expected),
        accuracy=None if truth is None else float(np.mean(predicted == truth)),
        top1_agreement=float(np.mean(predicted == reference)),
    )
