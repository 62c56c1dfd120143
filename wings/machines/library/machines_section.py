"""The machines of a run's races, and the rows of those that raced elsewhere, for every view of a report.

A speed-up is always that of two models on one machine; nothing here compares two machines.
"""

import json
from collections.abc import Iterator, Sequence

from pydantic import ValidationError

from gauntlet.core.run_report import RunReport
from gauntlet.reporting import text_format as written
from gauntlet.reporting import timeline
from gauntlet.reporting.section import Section, SectionTable
from gauntlet.reporting.text_format import MISSING
from wings.machines.library.remote import Machine, RemoteFacts, RemoteRace

RACE_HEADINGS = ("Race", "Machine", "Processor", "Threads", "A/A control", "Other load")
HEADINGS = ("Machine", "Candidate", "Target", "Batch", "Median", "Speed-up [95 %]", "Verdict")
LEFT_OUT = ("Threads", "Other load", "Verdict")
HERE = "this run"
NOTE = (
    "Each race compares with FP32 on the first target, on its own machine. A/A control: how far FP32 was from "
    "itself there. Other load: cores busy with other work during the race."
)


def machines(report: RunReport) -> Section | None:
    """Return the machines of a run and the rows of other ones.

    None where all targets raced on the run's own machine, or another version wrote the facts.
    """
    entry = report.stage("remote")
    if entry is None:
        return None
    try:
        facts = RemoteFacts.model_validate_json(json.dumps(entry.facts))
    except ValidationError:
        return None
    raced = [(race, race.machine) for race in facts.races if race.machine is not None]
    races = (_own_race(report), *(_race(race, machine) for race, machine in raced))
    rows = tuple(row for race, machine in raced for row in _rows(race, machine))
    return Section(
        "Machines",
        NOTE,
        (
            SectionTable("Machines of the races", RACE_HEADINGS, "lllrrr", races, LEFT_OUT),
            SectionTable("Races on other machines", HEADINGS, "lllrrrl", rows, LEFT_OUT),
        ),
        tuple(remark for race in facts.races for remark in _missing(race)),
    )


def _rows(race: RemoteRace, machine: Machine) -> Iterator[tuple[str, ...]]:
    """Yield the rows of a race in the order of `HEADINGS`, those of the reference first."""
    measured = [(race.results[0].candidate, row) for row in race.reference]
    measured += [(result.candidate, row) for result in race.results for row in result.rows]
    for name, row in measured:
        figures = (str(row.batch), written.milliseconds(row.median_ms), timeline.speedup_of(row))
        yield machine.host, name, row.target, *figures, row.verdict


def _missing(race: RemoteRace) -> Iterator[tuple[str, str]]:
    """Yield a target, or candidates on a target, without rows, and the reason."""
    names: dict[str, list[str]] = {}
    for result in race.results:
        if why := result.reason:
            names.setdefault(why, []).append(result.candidate)
    for why, candidates in names.items():
        every = len(candidates) == len(race.results)
        yield race.target if every else f"{', '.join(candidates)} on {race.target}", f"has no rows: {why}"


def _own_race(report: RunReport) -> tuple[str, ...]:
    """Return the race on the run's own machine, in the order of `RACE_HEADINGS`."""
    machine, outcome = report.environment, report.outcome
    host, processor, instructions, threads = map(machine.get, ("host", "processor", "instructions", "usable_threads"))
    return (
        HERE,
        MISSING if host is None else str(host),
        _processor(
            MISSING if processor is None else str(processor), instructions if isinstance(instructions, list) else ()
        ),
        str(threads if isinstance(threads, int) else 0),
        written.percent(outcome.noise),
        _cores(outcome.other_load_cores),
    )


def _race(race: RemoteRace, machine: Machine) -> tuple[str, ...]:
    """Return a race on another machine, in the order of `RACE_HEADINGS`."""
    deviations = [result.aa_deviation for result in race.results if result.aa_deviation is not None]
    return (
        race.target,
        f"{machine.host} (pool {race.pool})",
        _processor(machine.processor, machine.instructions),
        str(machine.usable_threads),
        written.percent(deviations[0] if deviations else None),
        _cores(race.load.other_load_cores if race.load else None),
    )


def _processor(name: str, instructions: Sequence[object]) -> str:
    return f"{name} ({', '.join(map(str, instructions))})" if instructions else name


def _cores(busy: float | None) -> str:
    return MISSING if busy is None else f"{written.fixed(busy, 2)} cores"
