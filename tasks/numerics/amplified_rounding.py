"""How much a network amplifies rounding: what one unit in the last place of its weights changes in its outputs."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from gauntlet.core.errors import StageError
from gauntlet.core.signature import Signature
from gauntlet.datasets.golden import GoldenCase
from gauntlet.metrics.output_comparison import NOISE_FACTOR, NoisyTolerances, Tolerances, compare_outputs, own_outputs
from gauntlet.onnx_model.model_file import read_graph
from gauntlet.onnx_model.recognition import precision_of
from gauntlet.runtime.session import open_session

DRAWS = 3
"""How often the weights are nudged: in a deep network, one draw may change an output ten times less than another."""
MAX_AMPLIFIED = 1e-3
"""The largest limit that rounding may make of the default one."""


def amplified_rounding(model: Path, cases: Mapping[str, GoldenCase], limits: Tolerances) -> dict[str, float]:
    """Return the largest relative error of each float output once every weight is one unit in its last place off.

    A dot product in floating point is the exact one of weights that are off by a few such units (Higham, Accuracy and
    Stability of Numerical Algorithms, 2002, section 3.1). What this changes, another order of sums may change as well.
    Returns nothing for a model that is not float32, that does not run on the inputs, or that exceeds 2 GiB.
    """
    if precision_of(read_graph(model))[0] != "float32":  # whose noise between batch sizes counts instead
        return {}
    errors, limits = dict[str, float](), limits.replace(batch_sizes=(limits.samples,))  # at others, it may differ
    try:
        own = own_outputs(open_session(model), cases, limits.samples)
        for seed in range(DRAWS):
            nudged = open_session(nudged_weights(onnx.load(model), seed).SerializeToString())
            comparison = compare_outputs(limits, nudged, own, Signature.find(read_graph(model)))
            if comparison.failures:
                return {}
            for row in comparison.rows:
                if row.max_rel_error is not None:
                    errors[row.output] = float(np.maximum(errors.get(row.output, 0.0), row.max_rel_error))  # keeps NaN
    except (StageError, ValueError):  # protobuf's own for a message that is too large
        return {}
    return {name: error for name, error in errors.items() if np.isfinite(error)}


def allow_rounding(limits: Tolerances, amplified: Mapping[str, float]) -> Tolerances:
    """Return limits that allow each output four times what rounding changes in it; a limit that was set stays."""
    if limits.max_rel_error != Tolerances.model_fields["max_rel_error"].default:
        return limits
    widest = {name: min(NOISE_FACTOR * error, MAX_AMPLIFIED) for name, error in amplified.items()}
    errors = {name: max(limits.error_limit(name), error) for name, error in widest.items()}
    return NoisyTolerances.model_validate({"agreements": {}} | limits.model_dump() | {"errors": errors})


def nudged_weights(proto: onnx.ModelProto, seed: int = 0, steps: int = 1) -> onnx.ModelProto:
    """Change every weight of a model, in place, by steps to a larger or smaller number; vectors may hold sizes."""
    generator = np.random.default_rng(seed)
    for tensor in proto.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT and len(tensor.dims) > 1:
            values = numpy_helper.to_array(tensor)
            towards = np.where(generator.random(values.shape) < 0.5, -np.inf, np.inf).astype(np.float32)
            nudged = np.where(values == 0, values, values + steps * (np.nextafter(values, towards) - values))
            tensor.CopyFrom(numpy_helper.from_array(nudged.astype(np.float32), tensor.name))
    return proto
