"""The checks of a candidate's accuracy: what it loses, what agrees, and how noisy its outputs are."""

import math
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from gauntlet.core.arrays import Array, NamedArrays
from gauntlet.core.errors import StageError
from gauntlet.core.ragged import is_ragged, paired
from gauntlet.core.report import Check, Severity
from gauntlet.datasets.golden import RANDOM, REAL, GoldenCase
from gauntlet.metrics.class_drops import unusual
from gauntlet.metrics.output_comparison import require_shapes
from gauntlet.metrics.output_noise import output_noise
from gauntlet.metrics.paired_accuracy import resolve
from gauntlet.problems.accuracy_comparison import AccuracyComparison, AccuracyLimits
from gauntlet.problems.base import Problem

BETTER_SAMPLES = "bring more representative samples"


def accuracy_checks(
    config: AccuracyLimits, facts: AccuracyComparison, remedy: str = BETTER_SAMPLES
) -> tuple[Check, ...]:
    """Return the checks of predictions, of all other outputs, and of noise; `remedy` is what has not been done yet."""
    drop = _expected_drop_checks if facts.expected_loss is not None else _drop_checks
    return (
        *drop(config, facts, remedy),
        *_bounded_checks(config, facts, remedy),
        *_noise_checks(config, facts, remedy),
    )


def _drop_checks(config: AccuracyLimits, facts: AccuracyComparison, remedy: str) -> tuple[Check, ...]:
    """Return the check of the measured drop, and whether a drop within the limit is proven to be within it."""
    limit, change = config.max_accuracy_drop, facts.change
    if change is None:
        return ()
    verdict, needed = resolve(change, limit)
    more = f"about {needed} test samples would settle it" if needed else "no number of samples is likely to settle it"
    changed = f"{change.lost} of {change.n} samples lost, {change.gained} gained"
    if change.lost is None:
        more = "test on more samples to settle it"
        changed = f"{change.metric} {change.before:.4f} before, {change.after:.4f} now, {change.n} samples"
    detail = f"{verdict}: {changed}; 95 % interval {change.low:.4f} to {change.high:.4f}"
    fix = f"{remedy}; {more}" if verdict == "not resolved" else remedy
    measured = Check.of("accuracy.max_accuracy_drop", change.drop, "<=", limit, detail, fix)
    unproven = verdict == "not resolved" and measured.passed
    why = f"a drop of at most {limit:g} is not proven: {changed}" if unproven else ""
    return measured, _unresolved_check(why, more, blocks=config.unresolved == "reject")


def _unresolved_check(why: str, more: str, *, blocks: bool) -> Check:
    """Return the check that everything is proven; it fails where there is a reason why it is not."""
    fix = f"{more}; set accuracy.unresolved to accept or reject it meanwhile"
    severity: Severity = "error" if blocks else "warning"
    return Check.of("accuracy.unresolved", int(bool(why)), "==", 0, why, fix, severity=severity)


def _expected_drop_checks(config: AccuracyLimits, facts: AccuracyComparison, remedy: str) -> tuple[Check, ...]:
    """Return the check of the loss to be expected, and whether the samples prove that it is within the limit."""
    loss, limit, blocks, why = facts.expected_loss, config.max_accuracy_drop, config.unresolved == "reject", ""
    assert loss is not None
    misfit = "whose labels the FP32 model predicts hardly better than chance"
    detail = f"expected of {loss.metric}: {facts.differences}; 95 % interval {max(0.0, loss.low):.4f} to "
    detail += f"{loss.high:.4f}; {facts.images} samples {'without labels' if facts.labels_fit else misfit}"
    expected = Check.of("accuracy.max_accuracy_drop", loss.drop, "<=", limit, detail, remedy)
    if facts.missing_evidence and not facts.same_values:
        why = f"nothing could be lost on {facts.images} samples: {facts.missing_evidence}"
        blocks = config.unresolved != "accept"
    elif expected.passed and loss.verdict(limit) == "not resolved":
        why = f"an expected drop of at most {limit:g} is not proven: {facts.differences}"
    more = "bring more samples that hold what the model is for, or their labels"
    return expected, _unresolved_check(why, more, blocks=blocks)


def _bounded_checks(config: AccuracyLimits, facts: AccuracyComparison, remedy: str) -> Iterator[Check]:
    """Yield the checks of what is proven to be lost in a class and of the ranking, and of what has to be equal.

    The latter are outputs that are neither predictions nor floats, and without labels the detections that are kept.
    """
    if (drop := facts.largest_class_drop) is not None:
        yield Check.of("accuracy.max_class_drop", drop.drop_low, "<=", config.max_class_drop, drop.text, remedy)
    if (change := facts.ranking) is not None:
        detail = f"mean ROC AUC {change.before:.4f} before, {change.after:.4f} now, {change.n} samples; "
        detail += "at least this drop"
        yield Check.of("accuracy.max_ranking_drop", change.low, "<=", config.max_ranking_drop, detail, remedy)
    share, of_what = facts.agreement
    if of_what:
        yield Check.of("accuracy.min_agreement", share, ">=", config.min_agreement, of_what, remedy)


def class_checks(
    facts: AccuracyComparison, min_recall: float, min_precision: float, remedy: str = BETTER_SAMPLES
) -> list[Check]:
    """Check the worst class of the candidate; of a class that the FP32 model misses, no more than its own score."""
    checks = []
    for score, limit in (("recall", min_recall), ("precision", min_precision)):
        pairs = list(zip(facts.classes, facts.reference_classes, strict=True))
        if not pairs:
            return []
        worst, before = min(pairs, key=lambda pair: getattr(pair[0], score) - min(limit, getattr(pair[1], score)))
        own = min(limit, getattr(before, score))
        detail = f"class '{worst.label}', {worst.images} samples; FP32: {getattr(before, score):.4f}"
        checks.append(Check.of(f"accuracy.min_{score}", getattr(worst, score), ">=", own, detail, remedy))
    return checks


def _noise_checks(config: AccuracyLimits, facts: AccuracyComparison, remedy: str) -> list[Check]:
    """Check the signal-to-noise ratio of the worst float output of each kind."""
    checks = []
    for name, limit, read in (
        ("min_sqnr_db", config.min_sqnr_db, True),
        ("min_values_sqnr_db", config.min_values_sqnr_db, False),
    ):
        outputs = {o.output: (o.sqnr_db, o.place) for o in facts.outputs if o.read == read and o.sqnr_db is not None}
        if outputs:
            output = min(outputs, key=lambda name: np.nan_to_num(outputs[name][0], nan=-np.inf))
            value, place = outputs[output]
            detail = f"output '{output}'{place}"
            checks.append(Check.of(f"accuracy.{name}", value, ">=", limit, detail, remedy, unit="dB"))
    return checks


DETECTIONS = "detections"
CASE_NAME = "accuracy.min_case_sqnr_db"
CASE_FIX = "calibrate on such samples, too, leave sensitive nodes in float, or name the lengths in use (train.lengths)"


def case_noise_check(
    limits: AccuracyLimits, problem: Problem, cases: Mapping[str, GoldenCase], run: Callable[[NamedArrays], NamedArrays]
) -> tuple[Check, ...]:
    """Check the SQNR of each output in each golden case but those of the data's own size; none without any.

    `run` returns the candidate's outputs for some inputs; `cases` hold those that its noise is measured against. Of
    classes, other integers, and sets of boxes, what changes is noise. Ragged integers and texts have no SQNR.
    """
    noise, floors = dict[tuple[str, str], float](), dict[tuple[str, str], float]()
    for title in [title for title in cases if title not in (REAL, RANDOM)]:
        expected = {name: array for name, array in cases[title].outputs.items() if name not in problem.signature.sets}
        try:
            outputs = run(cases[title].inputs)
            require_shapes(outputs, expected)
        except StageError as error:
            return (Check.of(CASE_NAME, None, ">=", limits.min_sqnr_db, f"at {title}: {error}", CASE_FIX),)
        if problem.signature.sets:
            noise[title, DETECTIONS] = kept_db(problem, outputs, cases[title].outputs)
            floors[title, DETECTIONS] = limits.min_sqnr_db
        for name, array in expected.items():
            place, is_value = (title, name), array.dtype.kind == "f" and name not in problem.outputs_read
            floors[place] = limits.min_values_sqnr_db if is_value else limits.min_sqnr_db
            if array.dtype.kind == "f":
                noise[place] = output_noise(outputs[name], array, read=not is_value).sqnr_db
            elif array.dtype.kind in "iub" and not is_ragged(array):
                noise[place] = _change_db(outputs[name], array, 1 - limits.min_agreement)
    if not noise:
        return ()
    worst = min(noise, key=lambda place: np.nan_to_num(noise[place] - floors[place], nan=-np.inf))
    judged = "; ".join(dict.fromkeys(title for title, _ in noise))
    detail = f"output '{worst[1]}' at {worst[0]}; judged: {judged}"
    return (Check.of(CASE_NAME, noise[worst], ">=", floors[worst], detail, CASE_FIX, unit="dB"),)


def kept_db(problem: Problem, actual: NamedArrays, expected: NamedArrays) -> float:
    """Return the share of detections of either side that the other one lacks, in dB below all of them."""
    before, after = problem.predictions_of(expected), problem.predictions_of(actual)
    if before is None or after is None:
        return math.inf
    shares = (problem.kept(*pair) for pair in ((before, after), (after, before)))
    lost = max((1 - share for share in shares if share is not None), default=0.0)
    return -10 * math.log10(lost) if lost > 0 else math.inf


def _change_db(actual: Array, expected: Array, least: float) -> float:
    """Return how many integers are not the most frequent one, or a share of `least`, over how many change but one."""
    actual, expected, _ = paired(actual, expected)
    varied, changed = unusual(expected).sum(), np.sum(actual != expected) - 1
    return 10 * math.log10(max(varied, least * expected.size) / changed) if changed > 0 else math.inf
