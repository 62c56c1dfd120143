"""The monitor's false alarms beside those of Evidently and NannyML by default, on the same streams of five features.

    python benchmarks/monitor_levels.py ENVIRONMENTS [--streams 100] [--nannyml-streams 24] [--evidently-streams 20]

Each library is installed into an environment of its own in the folder ENVIRONMENTS, with the versions below, and is
asked as its documentation shows it: windows of 1,000 requests, one after the other, against a reference. Evidently
chooses other tests above 1,000 rows of reference, so it has 1,000 and 10,000; NannyML has 10 chunks, 10,000, each a
day. The monitor has the 2,000 that `package` keeps by default, of all these days, and is looked at after every request,
without labels, with its default of a daily cycle and without. Undisturbed streams have 10,000 requests, 1,000 a day,
which are independent or depend on each other. The changes are those of drifting_digits.py at severity 1, after 2,000
independent requests; 4,000 more follow. The libraries take long, so they may have fewer. Prints a table.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import psutil
from drifting_digits import (
    CORRUPTIONS,
    DRAWS,
    LIMITS,
    NAMES,
    PER_DAY,
    Stream,
    alarm_of,
    label_shift,
    population,
    stream,
)
from results import Figure, Measured, conclude, script_parser
from scipy.stats import binomtest

from gauntlet.targets.environments import RuntimeEnvironment, make, python
from wings.lifecycle.library.monitoring.judged_samples import HOUR_S
from wings.lifecycle.library.monitoring.monitor_result import MonitorLimits
from wings.lifecycle.library.monitoring.reference import MonitoringReference

WINDOW, SAMPLES, SEVERITY = 1_000, 10_000, 1
CHANGED, AFTER = 2_000, 4_000
MAX_ALARMS = 5
"""In percent, of the monitor."""
OURS, SMALL, LARGE = 2_000, 1_000, 10_000
PINS = {"evidently": ("evidently==0.7.23", "pandas<3"), "nannyml": ("nannyml==0.13.1", "pandas<3", "statsmodels")}
"""Both import what newer versions of pandas lack; NannyML does not name statsmodels, which it imports."""
TITLES = {"evidently": "Evidently", "nannyml": "NannyML"}
NO_TELEMETRY = {"DO_NOT_TRACK": "1", "NML_DISABLE_USAGE_LOGGING": "1"}
WAYS = {"gauntlet monitor": MonitorLimits(), "gauntlet monitor --season-h 0": LIMITS}


@dataclass(frozen=True)
class Peer:
    """One library with one size of its reference."""

    library: str
    reference: int
    streams: int
    """How many of the undisturbed streams it is given."""

    @property
    def name(self) -> str:
        """The library with its version, and the size of the reference."""
        version = PINS[self.library][0].partition("==")[2]
        return f"{TITLES[self.library]} {version}, reference {self.reference:,}"


class Delay(NamedTuple):
    """How late one change is noticed: mean samples, and in how many streams it is noticed."""

    samples: float
    noticed: int

    @classmethod
    def of(cls, alarms_at: Sequence[int | None]) -> Self:
        """Return the mean delay; an alarm before the change is none, and one that does not come counts as the end."""
        late = [AFTER if at is None else at - CHANGED + 1 for at in alarms_at if at is None or at >= CHANGED]
        noticed = sum(at is not None and at >= CHANGED for at in alarms_at)
        return cls(float(np.mean(late)) if late else AFTER, noticed)

    def __str__(self) -> str:
        return f"{self.samples:.0f} ({self.noticed})"


def looks(python: Path, peer: Peer, streams: Sequence[Stream]) -> dict[str, list[list[bool]]]:
    """Return what a library says of each window after the change: by criterion, one list a stream."""
    script = Path(__file__).with_name("drift_libraries.py")
    with tempfile.TemporaryDirectory() as name:
        inputs, answers = Path(name) / "streams.npz", Path(name) / "looks.json"
        references = np.stack([case.reference.features[: peer.reference] for case in streams])
        requests = np.stack([case.history.features[case.changed % len(case.history.features) :] for case in streams])
        np.savez(inputs, names=np.array(NAMES), references=references, streams=requests, size=WINDOW)
        subprocess.run([python, script, peer.library, inputs, answers], check=True, env={**os.environ, **NO_TELEMETRY})
        alarms: dict[str, list[list[bool]]] = json.loads(answers.read_text())
    return alarms


def first(alarms: Sequence[bool]) -> int | None:
    """Return the last request of the first window with an alarm, counted from the start of the streams with changes."""
    return next((CHANGED + (place + 1) * WINDOW - 1 for place, alarm in enumerate(alarms) if alarm), None)


def drawn(streams: int, repeats: int) -> dict[str, list[Stream]]:
    """Return the streams by what changes in them."""
    streams_of = {
        name: [stream(seed, SAMPLES, reference=LARGE, draws=draws) for seed in range(streams)]
        for name, draws in DRAWS.items()
    }
    changes: dict[str, dict[str, Any]] = {name: {"after": population(name, SEVERITY)} for name in CORRUPTIONS}
    changes["label shift"] = {"weights": label_shift(SEVERITY)}
    for name, how in sorted(changes.items()):
        streams_of[name] = [
            stream(1000 + seed, CHANGED + AFTER, changed=CHANGED, reference=LARGE, **how) for seed in range(repeats)
        ]
    return streams_of


def ours(streams: Mapping[str, Sequence[Stream]], limits: MonitorLimits) -> dict[str, list[int | None]]:
    """Return the request of the monitor's first alarm for each stream."""

    def shorter(whole: Stream) -> Stream:
        known, wrong = whole.reference.features[:: LARGE // OURS], whole.reference.wrong
        times = whole.history.times * 24 * HOUR_S / PER_DAY
        reference = MonitoringReference(NAMES, known, None if wrong is None else wrong[:: LARGE // OURS])
        return replace(whole, reference=reference, history=replace(whole.history, times=times))

    return {name: [alarm_of(shorter(case), limits) for case in some] for name, some in streams.items()}


def theirs(python: Path, peer: Peer, streams: Mapping[str, Sequence[Stream]]) -> dict[str, dict[str, list[int | None]]]:
    """Return the same for each criterion of a library."""
    some = {name: those[: peer.streams] if name in DRAWS else those for name, those in streams.items()}
    alarms_of: dict[str, dict[str, list[int | None]]] = {}
    for chosen in (DRAWS, some.keys() - DRAWS.keys()):
        names = [name for name in some if name in chosen]
        for criterion, alarms_in in looks(python, peer, [case for name in names for case in some[name]]).items():
            rest = iter(alarms_in)
            alarms = {name: [first(next(rest)) for _ in some[name]] for name in names}
            alarms_of.setdefault(f"{peer.name}: {criterion}", {}).update(alarms)
    return alarms_of


def compare(folder: Path, streams: int, nannyml_streams: int, evidently_streams: int, repeats: int) -> Measured:
    """Ask everybody, and return the table."""
    evidently = (Peer("evidently", size, evidently_streams) for size in (SMALL, LARGE))
    peers = [*evidently, Peer("nannyml", LARGE, nannyml_streams)]
    environments = {library: make(folder / library, RuntimeEnvironment(PINS[library]), print) for library in PINS}
    pythons = {library: python(str(environment)) for library, environment in environments.items()}
    streams_of = drawn(streams, repeats)
    with ThreadPoolExecutor(len(peers)) as pool:
        waiting = [pool.submit(theirs, pythons[peer.library], peer, streams_of) for peer in peers]
        alarms = {f"{name}, reference {OURS:,}": ours(streams_of, limits) for name, limits in WAYS.items()}
        for waiter in waiting:
            alarms |= waiter.result()
    return measured(alarms, repeats)


def measured(alarms_of: Mapping[str, Mapping[str, Sequence[int | None]]], repeats: int) -> Measured:
    """Return the table: one row for each way to watch."""
    rows, figures = list[tuple[str, ...]](), list[Figure]()
    for place, (name, alarms) in enumerate(alarms_of.items()):
        changed = [Delay.of(some) for what, some in alarms.items() if what not in DRAWS]
        false = {what: sum(at is not None for at in alarms[what]) for what in DRAWS}
        noticed, late = sum(delay.noticed for delay in changed), float(np.mean([delay.samples for delay in changed]))
        rows.append((name, *(f"{false[what]} of {len(alarms[what])}" for what in false), *map(str, changed)))
        for what, count in false.items():
            ends = binomtest(count, len(alarms[what])).proportion_ci()  # Clopper and Pearson, 95 %
            share, low, high = (round(100 * part, 1) for part in (count / len(alarms[what]), *ends))
            ever = Figure.at_most(f"{name}: undisturbed streams that ever alarm, {what}", share, MAX_ALARMS, "%")
            figures.append(ever.replace(low=low, high=high, **({} if place == 0 else {"goal": "", "met": None})))
        figures += [
            Figure(name=f"{name}: mean delay, changes not noticed as {AFTER:,}", value=round(late), unit="requests"),
            Figure(name=f"{name}: changes noticed", value=noticed, unit=f"of {repeats * len(changed)}"),
        ]
    changes_asked = [name for name in next(iter(alarms_of.values())) if name not in DRAWS]
    return Measured(
        "The monitor beside Evidently and NannyML with their defaults, on the same streams",
        f"streams of {SAMPLES:,} requests without a change; {repeats} streams for each change at severity {SEVERITY}, "
        f"{AFTER:,} requests after it; the libraries look at windows of {WINDOW:,}, so their delay is at least that; "
        f"mean delay in requests, in brackets how many streams are noticed; load {psutil.getloadavg()[0]:.0f}",
        tuple(figures),
        ("way to watch", *(f"alarms, {what}" for what in DRAWS), *changes_asked),
        rows,
    )


def main() -> int:
    """Compare, print, write; return 1 when the monitor misses its goal."""
    parser = script_parser(__doc__)
    parser.add_argument("environments", type=Path, help="folder for the libraries' environments")
    parser.add_argument("--streams", type=int, default=100, help="undisturbed, for the monitor")
    parser.add_argument("--nannyml-streams", type=int, help="of these, for NannyML; by default all")
    parser.add_argument("--evidently-streams", type=int, default=20, help="of these, for Evidently")
    parser.add_argument("--repeats", type=int, default=2, help="streams for each change")
    options = parser.parse_args()
    streams = options.streams, options.nannyml_streams or options.streams, options.evidently_streams
    return conclude(compare(options.environments.resolve(), *streams, options.repeats), "monitoring", options.result)


if __name__ == "__main__":
    sys.exit(main())
