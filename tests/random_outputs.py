"""Outputs of models drawn at random, as their problem is inferred from them."""

import numpy as np
import onnx
from onnxruntime import InferenceSession

from gauntlet.core.arrays import NamedArrays
from gauntlet.core.signature import Signature, Task, TensorSpec
from gauntlet.problems.inference import infer_problem
from gauntlet.problems.output_evidence import InferredProblem

SAMPLES = 24
SIZE = (64, 96)


def floats(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(SAMPLES, *shape)).astype(np.float32)


def uniform(*shape: int, low: float = 0.0, high: float = 1.0) -> np.ndarray:
    return np.random.default_rng(1).uniform(low, high, (SAMPLES, *shape)).astype(np.float32)


def sigmoid(values: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-values))


def of_model(
    proto: onnx.ModelProto, inputs: NamedArrays, *, real: bool = True, classes: int = 0, task: Task | None = None
) -> InferredProblem:
    """Run a model and infer its problem."""
    session = InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    outputs = dict(zip(names, session.run(names, inputs), strict=True))
    return infer_problem(inputs, outputs, proto.graph, task=task, classes=classes, real=real)


def signature_of(problem: InferredProblem, outputs: NamedArrays) -> Signature:
    image = TensorSpec(name="image", dtype="float32", shape=("batch", 3, *SIZE))
    specs = tuple(
        TensorSpec(name=name, dtype=a.dtype.name, shape=("batch", *a.shape[1:])) for name, a in outputs.items()
    )
    meaning = {"task": problem.task, "labels": problem.labels, "decode": problem.decode}
    return Signature(inputs=(image,), outputs=specs, primary_output=problem.primary_output, **meaning)


def boxes(count: int = 120) -> np.ndarray:
    """Return center x, center y, width and height in pixels all over the image, shape (n, boxes, 4)."""
    place = uniform(count, 2) * np.array([SIZE[1], SIZE[0]])
    return np.concatenate([place, uniform(count, 2, low=4, high=30)], axis=2).astype(np.float32)


def corners(rows: np.ndarray) -> np.ndarray:
    return np.concatenate([rows[:, :, :2] - rows[:, :, 2:] / 2, rows[:, :, :2] + rows[:, :, 2:] / 2], axis=2)


def rare(*shape: int) -> np.ndarray:
    """Return probabilities, nearly all of them low."""
    return sigmoid(2 * floats(*shape) - 5).astype(np.float32)


def softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits)
    return powers / powers.sum(axis=2, keepdims=True)
