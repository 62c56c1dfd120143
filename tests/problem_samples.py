"""Outputs of an imperfect model of each problem, with the truth."""

import numpy as np

from gauntlet.core.signature import Signature, Task, TensorSpec
from gauntlet.problems import problem_of
from gauntlet.problems.base import Problem

LABELS = ("a", "b", "c")
LEVELS = ("0.1", "0.5", "0.9")


def problem(task: Task, labels: tuple[str, ...] = LABELS) -> Problem:
    labels = LEVELS if task == "quantiles" else labels
    output = TensorSpec(name="y", dtype="float32", shape=("batch",))
    return problem_of(Signature(task=task, inputs=(), outputs=(output,), labels=labels))


def sample(task: Task, rng: np.random.Generator, samples: int = 60) -> tuple[np.ndarray, np.ndarray]:
    """Return outputs of an imperfect model, and the truth."""
    noise = rng.normal
    if task == "regression":
        truth = noise(size=(samples, 3)).astype(np.float32)
        return truth + noise(scale=0.2, size=truth.shape).astype(np.float32), truth
    if task == "multi-label":
        truth = rng.integers(0, 2, (samples, 3))
        return (truth * 4 - 2 + noise(scale=2, size=truth.shape)).astype(np.float32), truth
    if task == "tagging":
        truth = rng.integers(0, 3, (samples, 7))
        return (np.eye(3)[truth] + noise(scale=0.4, size=(samples, 7, 3))).astype(np.float32), truth
    if task == "segmentation":
        truth = rng.integers(0, 3, (samples, 6, 5))
        return (np.moveaxis(np.eye(3)[truth], 3, 1) + noise(scale=0.5, size=(samples, 3, 6, 5))).astype(
            np.float32
        ), truth
    if task == "text":
        path = rng.integers(0, 4, (samples, 7))
        scores = np.eye(4)[path] + noise(scale=0.4, size=(samples, 7, 4))
        return scores.astype(np.float32), problem(task).predictions(np.eye(4)[path].astype(np.float32))
    if task == "quantiles":
        mean = noise(scale=2, size=(samples, 1))
        return (mean + np.array([-1.28, 0, 1.28])).astype(np.float32), mean[:, 0] + noise(size=samples)
    truth = rng.integers(0, 3, samples)
    if task == "ranking":
        scores = truth[:, None] + noise(scale=0.6, size=(samples, 1))
        return scores.astype(np.float32), np.stack([truth, rng.permutation(samples) // 10], axis=1)
    return (np.eye(3)[truth] + noise(scale=0.4, size=(samples, 3))).astype(np.float32), truth
