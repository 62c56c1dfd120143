"""Labeled requests to a graded bundle, logged as its server does."""

from pathlib import Path

import numpy as np
from graded_bundles import CLASSES, FIRST_FLAG, samples

from gauntlet.bundle.bundle import Bundle
from gauntlet.bundle.predictor import Predictor
from serving.request_log.writer import RequestLog, RequestLogConfig


def log_labeled(log: Path, bundle: Bundle, count: int, *, seed: int = 7, drifted: float = 0.0) -> None:
    """Log requests of one sample each, with labels; those of a share, by the flag, are another class than usual."""
    writer = RequestLog(RequestLogConfig(folder=log, inputs="all"))
    x, labels = samples(count, seed)
    labels = np.where(x[:, FIRST_FLAG] < drifted, (labels + 1) % CLASSES, labels)
    y = Predictor(bundle, threads=1).run({"x": x})["y"]
    for i in range(count):
        one = {"x": x[i : i + 1]}, {"y": y[i : i + 1]}
        writer.add(f"{seed}-{i}", bundle.digest[:12], bundle.contract.signature, *one, 0.001)
        writer.add_feedback(f"{seed}-{i}", (int(labels[i]),))
    writer.close()
