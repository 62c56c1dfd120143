"""The machines of a run's races, and the rows of those that raced elsewhere, for every view of a report.

A speed-up is always that of two models on one machine; nothing here compares two machines.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gauntlet.core.run_report import BenchmarkRow, RunReport
from gauntlet.reporting import stage_facts, timeline
from gauntlet.reporting import text_format as written
from gauntlet.reporting.text_format import MISSING

RACE_HEADINGS = ("Race", "Machine", "Processor", "Threads", "A/A control", "Other load")
HEADINGS = ("Machine", "Candidate", "Target", "Batch", "Median", "Speed-up [95 %]", "Verdict")
HERE = "this run"
NOTE = (
    "Each race compares with FP32 on the first target, on its own machine. A/A control: how far FP32 was from "
    "itself there. Other load: cores busy with other work during the race."
)


@dataclass(frozen=True)
class MachineRace:
    """One race: where it was run, and how noisy that machine was."""

    race: str
    host: str
    processor: str
    instructions: tuple[str, ...]
    threads: int
    aa_deviation: float | None
    other_load_cores: float | None

    @property
    def words(self) -> tuple[str, ...]:
        """The race in the order of `RACE_HEADINGS`."""
        processor = f"{self.processor} ({', '.join(self.instructions)})" if self.instructions else self.processor
        load = MISSING if self.other_load_cores is None else f"{written.fixed(self.other_load_cores, 2)} cores"
        return (self.race, self.host, processor, str(self.threads), written.percent(self.aa_deviation), load)


@dataclass(frozen=True)
class MachineLine:
    """One row of a race on another machine."""

    host: str
    candidate: str
    row: BenchmarkRow

    @property
    def words(self) -> tuple[str, ...]:
        """The line in the order of `HEADINGS`."""
        row = self.row
        figures = (str(row.batch), written.milliseconds(row.median_ms), timeline.speedup_of(row))
        return (self.host, self.candidate, row.target, *figures, row.verdict)


@dataclass(frozen=True)
class Machines:
    """The races of a run with targets on other machines."""

    races: tuple[MachineRace, ...]
    """The race on the run's own machine, then those on others."""
    lines: tuple[MachineLine, ...]
    """The rows from other machines, each race's reference first."""
    missing: tuple[tuple[str, str], ...]
    """A target, or candidates on a target, without rows, and the reason."""


def machines(report: RunReport) -> Machines | None:
    """Return the machines of a run; None where all targets raced on its own, or another version wrote the facts."""
    entry = report.stage("remote")
    if entry is None:
        return None
    try:
        found: Any = stage_facts.restored(entry.facts["races"])
        others = tuple(_race(facts) for facts in found if facts["machine"])
        return Machines((_own_race(report), *others), tuple(_lines(found)), tuple(_missing(found)))
    except (AttributeError, LookupError, TypeError, ValueError):
        return None


def _lines(found: Any) -> Iterator[MachineLine]:
    for facts in found:
        if not facts["machine"]:
            continue
        results, host = facts["race"]["results"], str(facts["machine"]["host"])
        rows = [(results[0]["candidate"], row) for row in facts["race"]["reference"]]
        rows += [(result["candidate"], row) for result in results for row in result["rows"]]
        for name, row in rows:
            yield MachineLine(host, str(name), BenchmarkRow.model_validate(row))


def _missing(found: Any) -> Iterator[tuple[str, str]]:
    for facts in found:
        results, names = facts["race"]["results"], dict[str, list[str]]()
        for result in results:
            if why := result["unavailable"] or result["reason"]:
                names.setdefault(str(why), []).append(str(result["candidate"]))
        for why, candidates in names.items():
            every = len(candidates) == len(results)
            yield str(facts["target"]) if every else f"{', '.join(candidates)} on {facts['target']}", why


def _own_race(report: RunReport) -> MachineRace:
    machine, benchmark = report.environment, report.stage("benchmark")
    facts: Any = stage_facts.restored(benchmark.facts) if benchmark is not None else {}
    instructions = machine.get("instructions")
    return MachineRace(
        race=HERE,
        host=str(machine.get("host", MISSING)),
        processor=str(machine.get("processor", MISSING)),
        instructions=tuple(map(str, instructions)) if isinstance(instructions, list) else (),
        threads=int(facts.get("threads", 0)),
        aa_deviation=facts.get("aa_deviation"),
        other_load_cores=(facts.get("machine") or {}).get("other_load_cores"),
    )


def _race(facts: Any) -> MachineRace:
    machine, load = facts["machine"], facts["race"]["load"] or {}
    deviations = [r["aa_deviation"] for r in facts["race"]["results"] if r["aa_deviation"] is not None]
    return MachineRace(
        race=str(facts["target"]),
        host=f"{machine['host']} (pool {facts['pool']})",
        processor=str(machine["processor"]),
        instructions=tuple(machine["instructions"]),
        threads=int(machine["usable_threads"]),
        aa_deviation=deviations[0] if deviations else None,
        other_load_cores=load.get("other_load_cores"),
    )
