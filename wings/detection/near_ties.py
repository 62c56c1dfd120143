"""Leave out samples whose boxes rounding selects: their scores are nearly ties, so that no gate can judge them."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx

from gauntlet.core.errors import StageError
from gauntlet.core.ragged import is_ragged
from gauntlet.core.signature import Signature
from gauntlet.datasets.golden import GoldenCase, first_samples
from gauntlet.metrics.output_comparison import (
    NOISE_FACTOR,
    OutputComparison,
    Tolerances,
    compare_outputs,
    own_outputs,
    sample_errors,
)
from gauntlet.onnx_model.model_file import read_graph
from gauntlet.onnx_model.recognition import precision_of
from gauntlet.runtime.batched_inference import batched_inference
from gauntlet.runtime.session import open_session
from tasks.numerics.amplified_rounding import MAX_AMPLIFIED, nudged_weights
from wings.detection.set_order import in_expected_order

MAX_BY_CHANCE = 0.25
"""Share of a case's samples that may be left out, because rounding decides which boxes they have."""
NUDGES = 3
"""Of the weights: each may find close scores whose order is chance."""


def without_ties(
    config: Tolerances,
    path: Path,
    cases: dict[str, GoldenCase],
    comparison: OutputComparison,
    passes: Callable[[OutputComparison], bool],
) -> tuple[dict[str, GoldenCase], OutputComparison, str]:
    """Return the samples whose lists rounding does not change, their comparison, and how many others there are.

    Nothing is left out where other samples differ as well, which says nothing of rounding, and where too few are left.
    """
    changed = {} if comparison.failures else _selected_by_chance(path, cases, config)
    if not any(each.any() for each in changed.values()):
        return cases, comparison, ""
    data, share = max(((data, each.mean()) for data, each in changed.items()), key=lambda pair: pair[1])
    kept, rest = cases, comparison
    if not any(each.all() for each in changed.values()):
        kept = {d: _kept(case, ~changed[d], config.samples) for d, case in cases.items()}
        rest = compare_outputs(config, open_session(path), kept, Signature.find(read_graph(path)))
        if not passes(rest):
            return cases, comparison, ""
    some = f"{changed[data].sum()} of {len(changed[data])} {data} samples"
    text = f"the scores of {some} are nearly ties: the last digits of the weights alone change which ones are selected"
    return (kept, rest, f"{text}, so they are left out") if share <= MAX_BY_CHANCE else (cases, comparison, text)


def _kept(case: GoldenCase, which: npt.NDArray[np.bool_], count: int) -> GoldenCase:
    inputs, outputs = first_samples(case.inputs, count), first_samples(case.outputs, count)
    return GoldenCase({n: a[which] for n, a in inputs.items()}, {n: a[which] for n, a in outputs.items()})


def _selected_by_chance(
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
        own = own_outputs(open_session(model), cases, limits.samples)
        for seed in range(NUDGES):
            nudged = open_session(nudged_weights(onnx.load(model), seed, NOISE_FACTOR).SerializeToString())
            for data, case in own.items():
                actual = batched_inference(nudged, case.inputs).run(limits.samples)
                actual = in_expected_order(actual, case.outputs, signature)
                far = [sample_errors(actual[name], case.outputs[name]) > MAX_AMPLIFIED for name in case.outputs]
                changed[data] = np.any([*far, changed.get(data, far[0])], axis=0)
    except (StageError, ValueError):
        return {}
    return changed
