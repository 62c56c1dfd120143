"""Several outputs with labels of their own: each is judged as a model of its own would be."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from configs.frameworks import trainings
from gauntlet.core.arrays import NamedArrays
from gauntlet.core.errors import ConfigError, StageError
from gauntlet.core.report import Check
from gauntlet.core.signature import Signature, TensorSpec
from gauntlet.datasets.golden import Golden
from gauntlet.datasets.splits import HEAD
from gauntlet.metrics.paired_accuracy import resolve
from gauntlet.problems.accuracy_checks import accuracy_checks
from gauntlet.problems.accuracy_comparison import AccuracyComparison, AccuracyLimits, compare_accuracy


def compare_heads(
    reference: Golden,
    signature: Signature,
    actual: NamedArrays,
    truth: NamedArrays,
    own: NamedArrays | None = None,
    limits: AccuracyLimits | None = None,
) -> dict[str, AccuracyComparison]:
    """Compare further outputs of a candidate with the FP32 model's, by the metric that suits their labels.

    `truth` holds these labels by output, shape (n, ...). See `compare_accuracy` for the other arguments.

    Raises:
        StageError: when there is no such output, it is the primary one, or the labels do not fit it.
    """
    heads = {}
    for output, labels in truth.items():
        if output not in reference.test_outputs or output == signature.primary_output:
            others = ", ".join(name for name in reference.test_outputs if name != signature.primary_output)
            raise StageError(
                f"{HEAD}{output}: 'labels' are those of the primary output, {signature.primary_output!r}, and "
                f"{HEAD}OUTPUT those of another one ({others or 'there is none'}). Fix: rename the labels, or name the "
                "primary output with train.primary_output"
            )
        head = signature.replace(task="arrays", labels=(), primary_output=output, decode=None, states=())
        values = reference.test_outputs[output]
        if values.dtype.kind == "f" and values.size == len(values) and labels.dtype.kind in "iu" and labels.max() > 1:
            labels = labels.astype(np.float64)  # one number cannot tell more than two classes
        golden = Golden({}, {output: values}, labels)
        try:
            facts = compare_accuracy(golden, head, actual, own)
        except StageError as error:
            raise StageError(f"{HEAD}{output}: {error}") from error
        if facts.change is None:
            shapes = f"{labels.dtype}{list(labels.shape)}, the output is {list(values.shape)}"
            fix = "number the classes from 0 for a score per class, and save numbers as floats"
            raise StageError(f"{HEAD}{output}: no problem has such labels and outputs: labels {shapes}. Fix: {fix}")
        verdict, needed = resolve(facts.change, (limits or AccuracyLimits()).max_accuracy_drop)
        heads[output] = facts.replace(verdict=verdict, images_to_resolve=needed)
    return heads


def judge_heads(
    limits: AccuracyLimits,
    comparison: AccuracyComparison,
    references: tuple[Golden, Golden | None],
    signature: Signature,
    actual: NamedArrays,
    truth: NamedArrays,
    remedy: str,
) -> tuple[AccuracyComparison, tuple[Check, ...]]:
    """Return the comparison with that of each further output in `heads`, and the checks of each one's own metric.

    `references` are those of the FP32 model, and of the network that the candidate was made from where that is another.
    The noise of these outputs has the limit of predictions, because they are judged as such.
    """
    reference, parent = references
    heads = compare_heads(reference, signature, actual, truth, parent.test_outputs if parent else None, limits)
    outputs = tuple(heads[each.output].outputs[0] if each.output in heads else each for each in comparison.outputs)
    checks = (
        check.replace(name=check.name.replace("accuracy.", f"accuracy.{output}.", 1))
        for output, facts in heads.items()
        for check in accuracy_checks(limits, facts.replace(outputs=()), remedy)
    )
    return comparison.replace(heads=heads, outputs=outputs), tuple(checks)


def choose_primary(train: dict[str, Any], outputs: Sequence[TensorSpec], heads: Sequence[str]) -> None:
    """Let the only output without labels of its own be the primary one, in the part `train` of a configuration.

    `heads` are the outputs with such labels. Raise ConfigError where the model has no such output.
    """
    names = [spec.name for spec in outputs]
    if unknown := [name for name in heads if name not in names]:
        raise ConfigError(
            f"--data: {HEAD}{unknown[0]}: the model has no output {unknown[0]!r}. Fix: name the labels of an output "
            f"{HEAD}OUTPUT; outputs: {', '.join(names)}"
        )
    others = [name for name in names if name not in heads]
    if len(others) == 1 and not trainings()[train["kind"]].finds_prediction:
        train["primary_output"] = others[0]
