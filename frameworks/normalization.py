"""Whether the data is normalized as the weights that a training starts from were."""

import numpy as np

from gauntlet.core.report import Check
from gauntlet.core.signature import Preprocessing
from gauntlet.frameworks.trial_run import ExpectedImages

TOLERANCE = 0.02
"""Between two means or deviations, of pixels from 0 to 1: some publish them rounded, some divide by 127.5 or 128."""


def normalization_checks(data: Preprocessing | None, expected: ExpectedImages | None) -> tuple[Check, ...]:
    """Return the check that warns where images do not arrive as published weights expect; none where that is unknown.

    A training adapts the weights to other images, but from a worse start.
    """
    if data is None or expected is None or len(data.mean) != len(expected.mean):
        return ()
    ours, theirs = (data.mean, data.std), (expected.mean, expected.std)
    apart = float(np.max(np.abs(np.subtract(ours, theirs))))
    wrong = 1.0 if data.channel_order != expected.channel_order else apart
    mean, std = ([float(f"{value:.4g}") for value in values] for values in theirs)
    check = Check(name="train.normalization", value=wrong, op="<=", limit=TOLERANCE, severity="warning")
    detail = f"the weights expect images {expected.why}"
    fix = f"set data.mean: {mean}, data.std: {std}, data.channel_order: {expected.channel_order}"
    return (check.explained(detail, fix),)
