"""Evidently or NannyML with their defaults, on windows of streams; for monitor_levels.py.

    python drift_libraries.py LIBRARY STREAMS.npz LOOKS.json

It runs in the library's environment. Evidently: each window is the current data of a `Report([DataDriftPreset()])` with
tests, as its documentation has it; by default, the dataset drifts when half of its columns do, and a column by a test
that is chosen by the size of the reference. NannyML: a window is a chunk, and an alarm is the calculators' own alert,
by default for a value more than three standard deviations of the reference's chunks away from their mean.
"""

import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd

CATEGORY = "predicted class"
"""The one feature that is no number."""


def evidently(known: pd.DataFrame, stream: pd.DataFrame, size: int) -> dict[str, list[bool]]:
    """Return by criterion what each window's tests say."""
    from evidently import DataDefinition, Dataset, Report
    from evidently.presets import DataDriftPreset

    numbers = [name for name in known.columns if name != CATEGORY]
    columns = DataDefinition(numerical_columns=numbers, categorical_columns=[CATEGORY])
    reference, *windows = (
        Dataset.from_pandas(frame.astype({CATEGORY: int}), data_definition=columns)
        for frame in (known, *(stream[start : start + size] for start in range(0, len(stream), size)))
    )
    tests = [Report([DataDriftPreset()], include_tests=True).run(part, reference).dict()["tests"] for part in windows]
    criteria = {"dataset drift": "DriftedColumnsCount", "any column": "ValueDrift"}
    return {name: [failed(results, metric) for results in tests] for name, metric in criteria.items()}


def failed(tests: list[dict], metric: str) -> bool:
    """Return whether a test of this metric failed."""
    statuses = [test["status"] for test in tests if test["metric_config"]["params"]["type"].endswith(f":{metric}")]
    if not statuses:
        raise SystemExit(f"the report has no test of {metric}: {tests}")
    return "FAIL" in [str(status).rsplit(".")[-1] for status in statuses]


def nannyml(known: pd.DataFrame, stream: pd.DataFrame, size: int) -> dict[str, list[bool]]:
    """Return by criterion the alerts of each window."""
    from nannyml import DataReconstructionDriftCalculator, UnivariateDriftCalculator

    names = list(known.columns)
    reference, analysis = (frame.astype({CATEGORY: int}).astype({CATEGORY: str}) for frame in (known, stream))
    calculators = {
        "any column": UnivariateDriftCalculator(names, treat_as_categorical=[CATEGORY], chunk_size=size),
        "reconstruction": DataReconstructionDriftCalculator(names, chunk_size=size),
    }
    alerts = {}
    for name, calculator in calculators.items():
        table = calculator.fit(reference).calculate(analysis).filter(period="analysis").to_df()
        alerts[name] = table.xs("alert", axis=1, level=-1).any(axis=1).tolist()
    return alerts


def main(library: str, source: str, target: str) -> None:
    """Write what a library says of each window: by criterion, one list of looks a stream."""
    looks: dict[str, list[list[bool]]] = {}
    with np.load(source) as file:
        names, size = file["names"].tolist(), int(file["size"])
        pairs = zip(file["references"], file["streams"], strict=True)
        frames = [[pd.DataFrame(rows, columns=names) for rows in pair] for pair in pairs]
    for known, stream in frames:
        for name, alarms in {"evidently": evidently, "nannyml": nannyml}[library](known, stream, size).items():
            looks.setdefault(name, []).append(alarms)
    Path(target).write_text(json.dumps(looks))


if __name__ == "__main__":
    main(*sys.argv[1:])
