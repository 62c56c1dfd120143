"""The facts of training, and what all kinds of training share."""

from dataclasses import replace
from pathlib import Path

import numpy as np
from pydantic import Field

from gauntlet.core.arrays import Array, NamedArrays
from gauntlet.core.errors import StageError
from gauntlet.core.facts import Facts, Outcome, Section
from gauntlet.core.frozen import Frozen
from gauntlet.core.report import Check, Report
from gauntlet.core.signature import Signature
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.golden import Golden, Predict
from gauntlet.datasets.splits import Split, Splits
from gauntlet.datasets.state_sequence import record_sequence, sequence_positions
from gauntlet.frameworks.training import EpochMetrics, store_golden_and_predictions
from gauntlet.metrics.error_metrics import predicted_classes
from gauntlet.metrics.paired_accuracy import PairedChange
from gauntlet.problems import problem_of


class InitialWeights(Frozen):
    """The weights that a training started from, and what of them was trained."""

    source: str = Field(description="the file's name, or the name of published weights")
    replaced: tuple[str, ...] = Field(
        (), description="tensors of a head of another number of classes, in whose place a new one was trained"
    )
    trained_parameters: int = Field(description="the others were frozen")


class TrainFacts(Facts):
    """How the training went, and the model's signature."""

    framework: str
    architecture: str
    parameters: int
    best_epoch: int = Field(0, description="the epoch whose weights were kept: the lowest validation loss; 0 for none")
    stopped_early: bool = False
    history: tuple[EpochMetrics, ...] = ()
    initial_weights: InitialWeights | None = Field(None, description="what the training started from, if not at random")
    fine_tuning: PairedChange | None = Field(
        None, description="of a brought network: before and after, on the validation images"
    )
    signature: Signature = Field(description="of the trained or pretrained model")

    def section(self) -> Section:
        """Return the epochs, and what they started from."""
        return Section("Training", template="training.html.j2", values={"training": self})

    def outcome(self) -> Outcome:
        """Return the names of the classes."""
        return Outcome(labels=self.signature.labels)


def report_model(
    facts: TrainFacts,
    golden: Golden,
    predict: Predict,
    splits: Splits,
    workspace: Workspace,
    model: Path,
    *companions: Path,
    checks: tuple[Check, ...] = (),
) -> Report[TrainFacts]:
    """Store the model's files, the golden outputs and the predictions for the splits, and report on them."""
    golden, steps = _with_sequence(golden, predict, splits["test"], facts.signature)
    artifacts = store_golden_and_predictions(golden, predict, splits, facts.signature, workspace)
    artifacts["model"] = workspace.store_file(model, *companions)
    lost = _missing_values_checks(golden.test_outputs, splits["test"])
    checks = (*checks, never_finite_check(golden.test_outputs), *lost, *_constant_outputs_checks(golden), *steps)
    return Report(facts=facts, checks=checks, artifacts=artifacts)


def never_finite_check(outputs: NamedArrays) -> Check:
    """Return the check that each output of floats has a finite value; all candidates would agree on none.

    A few that are not finite are no fault: masks are infinite, and random inputs may lie outside a function's domain.
    """
    never = [name for name, array in outputs.items() if array.dtype.kind == "f" and not np.isfinite(array).any()]
    samples = max((len(array) for array in outputs.values()), default=0)
    detail = f"no finite number for {samples} samples: {', '.join(never)}" if never else ""
    fix = "look for NaN in the weights (gauntlet inspect MODEL --weights), bring samples that the model is made for"
    fix += ", or cut off an output that is always empty (gauntlet cut)"
    return Check.of("train.never_finite_outputs", len(never), "==", 0, detail, fix, unit="outputs")


def _missing_values_checks(outputs: NamedArrays, test: Split) -> tuple[Check, ...]:
    """Return a failed check if samples that hold NaN or infinity have NaN in an output of shape (n, ...)."""
    lost = [np.isnan(a).reshape(len(a), -1).any(axis=1) for a in outputs.values() if a.dtype.kind == "f"]
    given = ((at, test.take(slice(at, at + 1)).values()) for at in np.flatnonzero(np.any(lost, axis=0)))
    rows = [at for at, arrays in given if any(a.dtype.kind == "f" and not np.isfinite(a).all() for a in arrays)]
    fix = "replace NaN and infinity in the inputs; the model does not take them for missing values"
    detail = f"NaN for test samples that hold NaN or infinity, the first of them test[{rows[0]}]" if rows else ""
    return (Check.of("train.lost_samples", len(rows), "==", 0, detail, fix, unit="samples"),) if rows else ()


def _constant_outputs_checks(golden: Golden) -> tuple[Check, ...]:
    """Return a warning if every output with finite floats is the same for all samples, though the samples differ.

    Some networks with random weights are like that. Every candidate then agrees with the source, whatever it computes.
    """
    floats = [array for array in golden.test_outputs.values() if array.dtype.kind == "f" and np.isfinite(array).any()]
    if not floats or any(map(varies, floats)) or not any(map(varies, golden.real.inputs.values())):
        return ()
    name, samples = "train.constant_outputs", len(floats[0])
    detail = f"the same values for all {samples} samples, though these differ: every candidate will agree with them"
    fix = "look at the weights (gauntlet inspect MODEL --weights), or bring samples that the model tells apart"
    return (Check.of(name, len(floats), "==", 0, detail, fix, unit="outputs", severity="warning"),)


def varies(array: Array) -> bool:
    """Return whether the samples of an array, shape (n, ...), differ."""
    return not np.array_equal(array, np.broadcast_to(array[:1], array.shape), equal_nan=array.dtype.kind == "f")


def _with_sequence(
    golden: Golden, predict: Predict, test: Split, signature: Signature
) -> tuple[Golden, tuple[Check, ...]]:
    """Return the golden outputs with those over sequences, and a warning where these end because a state overflows."""
    if not signature.states:
        return golden, ()
    sequence = record_sequence(predict, test, signature)
    steps, planned = 0 if sequence is None else len(sequence.positions), len(sequence_positions(len(test)))
    lost = "fed its own states, the model fails or returns NaN or infinite ones afterwards"
    fix = "if these outputs are no states of the model, set train.states to [], or to the pairs that are"
    detail = "" if steps == planned else lost
    check = Check.of("train.sequence_steps", steps, ">=", planned, detail, fix, unit="steps", severity="warning")
    long = record_sequence(predict, test, signature, long=True)
    return replace(golden, sequence=sequence, long_sequence=long), (check,)


def find_primary_output(chosen: str | None, outputs: NamedArrays, signature: Signature) -> str | None:
    """Return the output with the prediction: `chosen`, or the first with a score per label, scores, or labels.

    Of a detector, it is the one with the scores. Raise StageError if there is no output of the chosen name.
    """
    if signature.decode is not None:
        return signature.decode.scores
    if chosen is not None and chosen not in outputs:
        raise StageError(f"train.primary_output: the model has no output {chosen!r}; it has {sorted(outputs)}")
    problem, labels = problem_of(signature), len(signature.labels)
    predict = problem.predictions if problem.metric else predicted_classes  # classes are likely where nothing is known
    possible = [name for name, array in outputs.items() if predict(array) is not None]
    score_per_label = [name for name in possible if labels in outputs[name].shape[1:]]
    scores = [name for name in possible if outputs[name].dtype.kind == "f"]
    return chosen or next(iter((*score_per_label, *scores, *possible)), None)
