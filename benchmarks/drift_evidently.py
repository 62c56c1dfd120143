"""Evidently's preset for data drift with its defaults, on windows of streams; for monitor_levels.py.

    python drift_evidently.py STREAMS.npz LOOKS.json

It runs in an environment of its own. Each window is the current data of a `Report([DataDriftPreset()])` with tests, as
Evidently's documentation has it, and what counts as an alarm is what these tests say: by default, the dataset drifts
when half of its columns do, and a column by a test that is chosen by the size of the reference.
"""

import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd
from evidently import DataDefinition, Dataset, Report
from evidently.presets import DataDriftPreset

CATEGORY = "predicted class"
"""The one feature that is no number."""


def main(source: str, target: str) -> None:
    """Write what each window's tests say: by criterion, one list of looks a stream."""
    with np.load(source) as file:
        names, size = file["names"].tolist(), int(file["size"])
        references, streams = file["references"], file["streams"]
    columns = DataDefinition(numerical_columns=[n for n in names if n != CATEGORY], categorical_columns=[CATEGORY])

    def dataset(rows: np.ndarray) -> Dataset:
        frame = pd.DataFrame(rows, columns=names).astype({CATEGORY: int})
        return Dataset.from_pandas(frame, data_definition=columns)

    found: dict[str, list[list[bool]]] = {"dataset drift": [], "any column": []}
    for reference, stream in zip(references, streams, strict=True):
        known = dataset(reference)
        windows = [dataset(stream[start : start + size]) for start in range(0, len(stream), size)]
        tests = [Report([DataDriftPreset()], include_tests=True).run(one, known).dict()["tests"] for one in windows]
        found["dataset drift"].append([failed(one, "DriftedColumnsCount") for one in tests])
        found["any column"].append([failed(one, "ValueDrift") for one in tests])
    Path(target).write_text(json.dumps(found))


def failed(tests: list[dict], metric: str) -> bool:
    """Return whether a test of this metric failed."""
    told = [test["status"] for test in tests if test["metric_config"]["params"]["type"].endswith(f":{metric}")]
    if not told:
        raise SystemExit(f"the report has no test of {metric}: {tests}")
    return "FAIL" in [str(status).rsplit(".")[-1] for status in told]


if __name__ == "__main__":
    main(*sys.argv[1:])
