"""The states of a brought model, as configured or inferred."""

from typing import Annotated, Any

from pydantic import Field

from gauntlet.core.arrays import Array, NamedArrays
from gauntlet.core.errors import StageError
from gauntlet.core.signature import Signature
from gauntlet.core.states import SampleType, continues, sample_types, states_by_name, states_by_shape
from gauntlet.datasets.golden import Golden
from gauntlet.metrics.error_metrics import within_unit
from gauntlet.problems import problem_of
from tasks.train.facts import find_primary_output

StatePairs = Annotated[
    tuple[tuple[str, str], ...] | None,
    Field(description="streaming: pairs of an input and the output with its next value; default: inferred; `[]`: none"),
]


def with_primary_and_states(signature: Signature, golden: Golden, config: Any) -> Signature:
    """Return the signature with its primary output and its states, each as in `config`, or inferred where it is None.

    A primary output that is inferred is no state, unless there is no other output. Raise StageError where a name or a
    pair does not fit the model.
    """
    primary_output, states = config.primary_output, config.states
    inputs, outputs = sample_types(golden.real.inputs), sample_types(golden.real.outputs)
    named = states_by_name(inputs, outputs) if states is None else states
    for name, output in named:
        if name not in inputs or not continues(name, inputs[name], outputs.get(output)):
            raise StageError(
                f"train.states: the input {name!r} is {_described(inputs.get(name))}, the output {output!r} is "
                f"{_described(outputs.get(output))}; expected an input and an output of one type and shape. Inputs: "
                f"{', '.join(inputs)}; outputs: {', '.join(outputs)}"
            )
    returned = {output for _, output in named} if primary_output is None else set()
    others = {name: array for name, array in golden.test_outputs.items() if name not in returned}
    primary = find_primary_output(primary_output, others or golden.test_outputs, signature)
    if states is None:
        fixed = [spec.name for spec in signature.inputs if not spec.is_open]
        named = states_by_shape(inputs, outputs, named, primary or next(iter(others), ""), fixed)
    signature = signature.replace(primary_output=primary, states=named)
    return _with_logit(signature, others or golden.test_outputs, golden.labels)


def _with_logit(signature: Signature, outputs: NamedArrays, labels: Array | None) -> Signature:
    """Return the signature of independent labels, a mask or two classes that have numbers beyond 0 to 1: their logits.

    Those of two classes are only read with labels, as one number may be anything.
    """
    numbers = [name for name, array in outputs.items() if array.dtype.kind == "f" and array.size == len(array)]
    name = signature.primary_output or (numbers[0] if len(numbers) == 1 else None)
    if signature.task in ("multi-label", "segmentation"):
        scores = outputs[name or next(iter(outputs))]
        return signature.replace(logit=scores.dtype.kind == "f" and not within_unit(scores))
    binary = signature.task == "classification" and labels is not None and len(signature.labels) == 2
    if not binary or name not in numbers or problem_of(signature).predictions(outputs[name]) is not None:
        return signature
    return signature.replace(primary_output=name, logit=True)


def _described(kind: SampleType | None) -> str:
    return "missing" if kind is None else f"{kind[0]}{list(kind[1])}"
