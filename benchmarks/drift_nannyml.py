"""NannyML's two drift calculators with their defaults, on windows of streams; for monitor_levels.py.

    python drift_nannyml.py STREAMS.npz LOOKS.json

It runs in an environment of its own. A window is a chunk. What counts as an alarm is the calculators' own alert: by
default, a value that is more than three standard deviations of the reference's chunks away from their mean.
"""

import json
import sys
from pathlib import Path

import nannyml
import numpy as np
import pandas as pd

CATEGORY = "predicted class"
"""The one feature that is no number."""


def main(source: str, target: str) -> None:
    """Write the alerts of each window: by criterion, one list of looks a stream."""
    with np.load(source) as file:
        names, size = file["names"].tolist(), int(file["size"])
        references, streams = file["references"], file["streams"]
    found: dict[str, list[list[bool]]] = {"any column": [], "reconstruction": []}
    for rows, stream in zip(references, streams, strict=True):
        reference, analysis = (
            pd.DataFrame(part, columns=names).astype({CATEGORY: int}).astype({CATEGORY: str}) for part in (rows, stream)
        )
        univariate = nannyml.UnivariateDriftCalculator(names, treat_as_categorical=[CATEGORY], chunk_size=size)
        together = nannyml.DataReconstructionDriftCalculator(names, chunk_size=size)
        for name, calculator in zip(found, (univariate, together), strict=True):
            table = calculator.fit(reference).calculate(analysis).filter(period="analysis").to_df()
            found[name].append(table.xs("alert", axis=1, level=-1).any(axis=1).tolist())
    Path(target).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
