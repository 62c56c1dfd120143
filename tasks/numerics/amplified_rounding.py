"""How much a network amplifies rounding: what one unit in the last place of its weights changes in its outputs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

from gauntlet.core.arrays import Array
from gauntlet.core.errors import StageError
from gauntlet.core.kinds import kinds
from gauntlet.core.ragged import is_ragged
from gauntlet.core.signature import Signature
from gauntlet.datasets.golden import GoldenCase, first_samples
from gauntlet.metrics.output_comparison import NOISE_FACTOR, NoisyTolerances, Tolerances, compare_outputs, sample_errors
from gauntlet.onnx_model.model_file import read_graph
from gauntlet.onnx_model.recognition import precision_of
from gauntlet.runtime.batched_inference import batched_inference
from gauntlet.runtime.session import open_session

MAX_AMPLIFIED = 1e-3
"""The largest limit that rounding may make of the default one."""
NUDGES = 3
"""Of a detector: each may find close scores whose order is chance."""


def amplified_rounding(model: Path, cases: Mapping[str, GoldenCase], limits: Tolerances) -> dict[str, float]:
    """Return the largest relative error of each float output once every weight is one unit in its last place off.

    A dot product in floating point is the exact one of weights that are off by a few such units (Higham, Accuracy and
    Stability of Numerical Algorithms, 2002, section 3.1). What this changes, another order of sums may change as well.
    Returns nothing for a model that is not float32, that does not run on the inputs, or that exceeds 2 GiB.
    """
    if precision_of(read_graph(model))[0] != "float32":  # whose noise between batch sizes counts instead
        return {}
    try:
        own = _own(open_session(model), cases, limits)
        nudged = open_session(_nudged(onnx.load(model)).SerializeToString())
    except (StageError, ValueError):  # protobuf's own for a message that is too large
        return {}
    comparison = compare_outputs(limits, nudged, own, Signature.find(read_graph(model)))
    errors = dict[str, float]()
    for row in comparison.rows:
        if row.max_rel_error is not None:
            errors[row.output] = float(np.maximum(errors.get(row.output, 0.0), row.max_rel_error))  # keeps NaN
    return {name: error for name, error in errors.items() if np.isfinite(error) and not comparison.failures}


def allow_rounding(limits: Tolerances, amplified: Mapping[str, float]) -> Tolerances:
    """Return limits that allow each output four times what rounding changes in it; a limit that was set stays."""
    if limits.max_rel_error != Tolerances.model_fields["max_rel_error"].default:
        return limits
    widest = {name: min(NOISE_FACTOR * error, MAX_AMPLIFIED) for name, error in amplified.items()}
    errors = {name: max(limits.error_limit(name), error) for name, error in widest.items()}
    return NoisyTolerances.model_validate({"agreements": {}} | limits.model_dump() | {"errors": errors})


def selected_by_chance(
    model: Path, cases: Mapping[str, GoldenCase], limits: Tolerances
) -> dict[str, npt.NDArray[np.bool_]]:
    """Return by case which of its first samples have lists, as of boxes, that the weights' last digits alone change.

    Their scores are so close that rounding decides which ones are selected. Empty for a model without lists, or one
    that `amplified_rounding` has nothing for.
    """
    graph = read_graph(model)
    lists = any(is_ragged(output) for case in cases.values() for output in case.outputs.values())
    if not lists or precision_of(graph)[0] != "float32":
        return {}
    signature, changed = Signature.find(graph), dict[str, npt.NDArray[np.bool_]]()
    try:
        own = _own(open_session(model), cases, limits)
        for seed in range(NUDGES):
            nudged = open_session(_nudged(onnx.load(model), seed, NOISE_FACTOR).SerializeToString())
            for data, case in own.items():
                actual = batched_inference(nudged, case.inputs).run(limits.samples)
                for ordered in kinds("ordered").values():
                    actual = ordered(actual, case.outputs, signature)
                far = [sample_errors(actual[name], case.outputs[name]) > MAX_AMPLIFIED for name in case.outputs]
                changed[data] = np.any([*far, changed.get(data, far[0])], axis=0)
    except (StageError, ValueError):
        return {}
    return changed


def _own(session: Any, cases: Mapping[str, GoldenCase], limits: Tolerances) -> dict[str, GoldenCase]:
    """Return the first inputs of each case, with the outputs of the session itself."""
    inputs = {data: first_samples(case.inputs, limits.samples) for data, case in cases.items()}
    return {d: GoldenCase(each, batched_inference(session, each).run(limits.samples)) for d, each in inputs.items()}


def _nudged(proto: onnx.ModelProto, seed: int = 0, steps: int = 1) -> onnx.ModelProto:
    """Change every weight of a model, in place, by steps to a larger or smaller number; vectors may hold sizes."""
    generator = np.random.default_rng(seed)
    for tensor in proto.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT and len(tensor.dims) > 1:
            values = numpy_helper.to_array(tensor)
            nudged = values + steps * (_neighbours(values, generator) - values)
            tensor.CopyFrom(numpy_helper.from_array(nudged.astype(np.float32), tensor.name))
    return proto


def _neighbours(values: Array, generator: np.random.Generator) -> Array:
    towards = np.where(generator.random(values.shape) < 0.5, -np.inf, np.inf).astype(np.float32)
    return np.where(values == 0, values, np.nextafter(values, towards))
