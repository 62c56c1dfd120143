"""How often the monitor raises a false alarm, how late it notices a change, and what its estimates are worth.

    python benchmarks/drift_detection.py alarms [--streams 100] [--samples 10000]
    python benchmarks/drift_detection.py delays [--repeats 10]
    python benchmarks/drift_detection.py accuracy [--repeats 20]

`alarms` looks at undisturbed streams after every sample. `delays` changes streams after 2,000 samples in ten ways at
five severities. The fixed-size test compares windows of w samples, one after the other, with the reference by
Kolmogorov and Smirnov's test, corrected for the windows of 10,000 samples and for the features; for each change it has
the w with the least delay, which nobody can know before. `accuracy` estimates it on samples after the same
changes, without labels, and compares. Prints a table and exits with 1 when a goal is missed.
"""

import argparse
import sys
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from drifting_digits import (
    CORRUPTIONS,
    NAMES,
    SEVERITIES,
    Floats,
    Population,
    Stream,
    concept_drift,
    label_shift,
    population,
    stream,
)
from results import Figure, Measured, add_result_option, conclude

from gauntlet.monitoring.accuracy_estimate import MOST_ERROR, estimate_accuracy
from gauntlet.monitoring.judgment import gather
from gauntlet.monitoring.result import MonitorLimits

LIMITS = MonitorLimits()
MOST_ALARMS = 0.05
MOST_RATIO = 1.5
HORIZON = 10_000
"""Samples over which the fixed-size test keeps its rate of false alarms."""
CHANGED, AFTER = 2_000, 4_000
REFERENCE = 2_000
"""Samples of the evaluation with which accuracy is estimated: what `package` keeps by default."""
WINDOWS = (10, 20, 50, 100, 200, 500, 1000)
USUAL_WINDOW, USUAL_P = 100, 0.05
"""What tools that compare windows do by default: no correction for the next look."""


def alarm_of(one: Stream) -> int | None:
    """Return the sample or label of the first alarm of any of the monitor's tests; None where there is none."""
    evidence = gather(one.history, one.reference, LIMITS)
    found = [wealth.first_above(evidence.level) for wealth in evidence.features if wealth is not None]
    if evidence.risk is not None:
        label = evidence.risk.first_above(evidence.risk_level)
        found.append(None if label is None else int(one.history.labeled[label]))
    return min((alarm for alarm in found if alarm is not None), default=None)


def statistics(reference: Floats, windows: Floats) -> Floats:
    """Return Kolmogorov and Smirnov's statistic of each window, shape (windows, w), against the reference."""
    known, ordered = np.sort(reference), np.sort(windows, axis=1)
    size = ordered.shape[1]
    upto, below = (np.searchsorted(known, ordered, side) / len(known) for side in ("right", "left"))
    last = np.stack([np.searchsorted(row, row, "right") for row in ordered]) / size
    first = np.stack([np.searchsorted(row, row, "left") for row in ordered]) / size
    return np.asarray(np.maximum(np.abs(last - upto), np.abs(first - below)).max(axis=1))


def critical(p_value: float, known: int, size: int) -> float:
    """Return the statistic that has this p-value, asymptotically."""
    return float(np.sqrt(-np.log(p_value / 2) / 2 * (known + size) / (known * size)))


def fixed_size_alarm(one: Stream, size: int, p_value: float) -> int | None:
    """Return the last sample of the first window in which some feature is rejected."""
    whole = len(one.history.features) // size * size
    limit = critical(p_value, len(one.reference.features), size)
    found = []
    for i in range(len(NAMES)):
        windows = one.history.features[:whole, i].reshape(-1, size)
        found += (np.flatnonzero(statistics(one.reference.features[:, i], windows) > limit)[:1] + 1).tolist()
    return min(found) * size - 1 if found else None


def alarms(streams: int, samples: int, seed: int = 0) -> Measured:
    """Count the undisturbed streams that ever alarm."""
    ours = usual = 0
    for number in range(streams):
        one = stream(seed + number, samples, labeled=1.0)
        ours += alarm_of(one) is not None
        usual += fixed_size_alarm(one, USUAL_WINDOW, USUAL_P) is not None
    text = f"windows of {USUAL_WINDOW} at p < {USUAL_P:g}, each feature"
    figures = (
        Figure(name="undisturbed streams that ever alarm", value=ours, unit=f"of {streams}",
               goal="at most 5 of 100", met=ours <= MOST_ALARMS * streams),
        Figure(name=f"the same for {text}", value=usual, unit=f"of {streams}"),
    )  # fmt: skip
    conditions = f"{streams} streams of {samples} samples, all labeled, looked at after each; a reference of 500 each"
    rows = [("gauntlet monitor", str(ours)), (text, str(usual))]
    claim = "A monitor that is looked at after every request keeps its rate of false alarms"
    return Measured(claim, conditions, figures, ("test", f"streams that alarm, of {streams}"), rows)


def changes() -> dict[tuple[str, int], dict[str, object]]:
    """Return what `stream` takes for every change and severity."""
    found: dict[tuple[str, int], dict[str, object]] = {}
    for severity in SEVERITIES:
        for name in CORRUPTIONS:
            found[name, severity] = {"after": population(name, severity)}
        found["label shift", severity] = {"weights": label_shift(severity)}
    return dict(sorted(found.items()))


class Delay(NamedTuple):
    """How late one change is noticed: mean samples, and in how many streams it is noticed."""

    samples: float
    noticed: int


def delay(alarms_at: Sequence[int | None]) -> Delay:
    """Return the mean delay; an alarm before the change is none, and one that does not come counts as the end."""
    late = [AFTER if at is None else at - CHANGED + 1 for at in alarms_at if at is None or at >= CHANGED]
    noticed = sum(at is not None and at >= CHANGED for at in alarms_at)
    return Delay(float(np.mean(late)) if late else AFTER, noticed)


def delays(repeats: int) -> Measured:
    """Measure the delay of the monitor without labels and of the best fixed-size test; with labels, concept drift's."""
    rows, ratios, missed = [], [], 0
    for (name, severity), how in changes().items():
        streams = [stream(1000 + n, CHANGED + AFTER, changed=CHANGED, **how) for n in range(repeats)]  # type: ignore[arg-type]
        ours = delay([alarm_of(one) for one in streams])
        fixed = {}
        for size in WINDOWS:
            p_value = LIMITS.false_alarms / len(NAMES) / (HORIZON // size)
            fixed[size] = delay([fixed_size_alarm(one, size, p_value) for one in streams])
        best = min(fixed, key=lambda size: fixed[size].samples)
        if fixed[best].noticed == repeats:
            ratios.append(ours.samples / fixed[best].samples)
            missed += ours.noticed < repeats
        rows.append(
            (name, str(severity), f"{ours.samples:.0f}", f"{ours.noticed}", f"{fixed[best].samples:.0f}",
             f"{fixed[best].noticed}", str(best))
        )  # fmt: skip
    for severity in SEVERITIES:
        how = {"after": concept_drift(severity), "labeled": 1.0}
        streams = [stream(1000 + n, CHANGED + AFTER, changed=CHANGED, **how) for n in range(repeats)]  # type: ignore[arg-type]
        ours = delay([alarm_of(one) for one in streams])
        rows.append(("concept drift, all labeled", str(severity), f"{ours.samples:.0f}", f"{ours.noticed}", "", "", ""))
    return Measured(
        "A monitor notices changes about as early as the best fixed-size test, whose size nobody knows before",
        f"{repeats} streams for each change, which comes after {CHANGED} samples; {AFTER} more are looked at",
        _delay_figures(np.array(ratios), missed),
        (
            "change",
            "severity",
            "delay, samples",
            f"noticed, of {repeats}",
            "best fixed size: delay",
            "noticed",
            "its size",
        ),
        rows,
    )


def _delay_figures(ratios: Floats, missed: int) -> tuple[Figure, ...]:
    within = int((ratios <= MOST_RATIO).sum())
    return (
        Figure(name="delay over that of the best fixed-size test, median of the changes that it always notices",
               value=round(float(np.median(ratios)), 2), unit="x", goal=f"at most {MOST_RATIO:g}x",
               met=bool(np.median(ratios) <= MOST_RATIO)),
        Figure(name=f"changes within {MOST_RATIO:g}x", value=within, unit=f"of {len(ratios)}", goal="all of them",
               met=within == len(ratios)),
        Figure(name="changes that the fixed-size test always notices and the monitor does not", value=missed,
               goal="0", met=missed == 0),
    )  # fmt: skip


def accuracy(repeats: int) -> Measured:
    """Compare the accuracy that is estimated after each change with that of the changed population."""
    drifts = {("concept drift, 20 % labeled", s): {"after": concept_drift(s), "labeled": 0.2} for s in SEVERITIES}
    asked: dict[tuple[str, int], dict[str, object]] = {("no change", 0): {}, **changes(), **drifts}
    rows, errors, inside = list[tuple[str, ...]](), list[float](), 0
    for place, ((name, severity), how) in enumerate(asked.items()):
        drawn, weights, off = how.get("after") or population(), how.get("weights"), list[float]()
        assert isinstance(drawn, Population) and isinstance(weights, np.ndarray | None)
        right = float(np.average(~drawn.wrong, weights=weights))
        for number in range(repeats):
            one = stream(2000 + repeats * place + number, AFTER, changed=0, reference=REFERENCE, **how)  # type: ignore[arg-type]
            estimate = estimate_accuracy(one.history, one.reference)
            if estimate is None or estimate.accuracy is None or estimate.low is None or estimate.high is None:
                continue
            off.append(estimate.accuracy - right)
            inside += estimate.low <= right <= estimate.high
        errors += off
        worst = f"{100 * max(off, key=abs):+.1f}" if off else ""
        rows.append((name, str(severity) if severity else "", f"{100 * right:.1f}", str(len(off)), worst))
    return Measured(
        "Without labels, accuracy is estimated within two points, or not at all",
        f"{repeats} streams of {AFTER} samples after each change, without labels but for concept drift; each has a "
        f"reference of {REFERENCE} of its own",
        _estimate_figures(np.array(errors), inside, repeats * len(asked)),
        ("change", "severity", "accuracy, %", f"estimated, of {repeats}", "largest error, points"),
        rows,
    )


def _estimate_figures(errors: Floats, inside: int, asked: int) -> tuple[Figure, ...]:
    largest = float(np.abs(errors).max())
    return (
        Figure(name="largest error of an estimate", value=round(100 * largest, 2), unit="points",
               goal=f"at most {100 * MOST_ERROR:g}", met=largest <= MOST_ERROR),
        Figure(name="estimates made", value=len(errors), unit=f"of {asked}"),
        Figure(name="of these, with the accuracy in their 95 % interval", value=round(100 * inside / len(errors), 1),
               unit="%"),
    )  # fmt: skip


def main(words: Sequence[str] | None = None) -> int:
    """Run what is asked for; return 1 when a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one, *others = (commands.add_parser(name) for name in ("alarms", "delays", "accuracy"))
    one.add_argument("--streams", type=int, default=100)
    one.add_argument("--samples", type=int, default=HORIZON)
    for other, repeats in zip(others, (10, 20), strict=True):
        other.add_argument("--repeats", type=int, default=repeats)
    for command in (one, *others):
        add_result_option(command)
    asked = parser.parse_args(words)
    if asked.command == "alarms":
        found = alarms(asked.streams, asked.samples)
    else:
        found = delays(asked.repeats) if asked.command == "delays" else accuracy(asked.repeats)
    return conclude(found, "monitoring", asked.result)


if __name__ == "__main__":
    sys.exit(main())
