"""Samples on a threshold of a tree: rounding decides their side, in scikit-learn as in ONNX.

A tree's thresholds lie halfway between values of the training data, and so does a whole number between two others. What
is computed before the tree, such as a scale, then decides by its last digit.
"""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx

from gauntlet.core.arrays import NamedArrays
from gauntlet.core.errors import StageError
from gauntlet.metrics.output_comparison import NOISE_FACTOR, Tolerances, differing
from gauntlet.runtime.batched_inference import batched_inference
from gauntlet.runtime.session import open_session
from tasks.numerics.amplified_rounding import nudged_weights

MOVED = ("nodes_values", "offset", "scale")
"""The thresholds of trees, and what a scaler holds."""
NUDGES = 8
"""Each moves all numbers, to either side: a sample on a threshold changes its side in about half of them."""


def decided_by_rounding(limits: Tolerances, path: Path, inputs: NamedArrays) -> npt.NDArray[np.bool_]:
    """Return of which samples, shape (n,), the last digits of a model's numbers alone change the outputs.

    `inputs` has arrays of shape (n, ...). False for all in a model without operators of `ai.onnx.ml`.
    """
    proto, chance = onnx.load(path), np.zeros(len(next(iter(inputs.values()))), bool)
    if not any(node.domain == "ai.onnx.ml" for node in proto.graph.node):
        return chance
    try:
        own = batched_inference(open_session(path), inputs).run(len(chance))
        for seed in range(NUDGES):
            nudged = open_session(_nudged(onnx.load(path), seed).SerializeToString())
            actual = batched_inference(nudged, inputs).run(len(chance))
            chance |= np.any([differing(limits, name, actual[name], own[name]) for name in own], axis=0)
    except StageError:
        return np.zeros_like(chance)
    return chance


def _nudged(proto: onnx.ModelProto, seed: int) -> onnx.ModelProto:
    """Move the numbers of a model a few units in the last place to either side; vectors of weights stay."""
    random = np.random.default_rng(seed)
    for node in proto.graph.node:
        for attribute in [a for a in node.attribute if node.domain == "ai.onnx.ml" and a.name in MOVED]:
            values = np.array(attribute.floats, np.float32)
            attribute.floats[:] = values + random.choice([-1, 1], len(values)) * NOISE_FACTOR * np.spacing(values)
    return nudged_weights(proto, seed, NOISE_FACTOR)
