"""The decision of a run: which candidate wins, and why each of the others does not."""

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from gauntlet.core.facts import Facts, Outcome
from gauntlet.core.frozen import Frozen, Number
from gauntlet.core.run_report import BenchmarkRow, CandidateEntry
from gauntlet.race.confidence import CONFIDENCE
from gauntlet.race.objective import Objective, decides_by_speed
from gauntlet.race.session_options import SessionVariant
from tasks.benchmark.facts import BenchmarkFacts


class Verdict(Frozen):
    """Whether the first race accepts one candidate, and why."""

    candidate: str
    accepted: bool
    reason: str


class Choice(Frozen):
    """A candidate that wins if it is confirmed, and none before it is."""

    candidate: str
    target: str
    session: SessionVariant | None
    note: str = Field(description="the end of its reason: where it runs, and with how many it is tied")


class OverNormalized(Frozen):
    """The candidate's speed in multiples of that of the normalized float file, in the same rounds."""

    normalized: str = Field(description="name of the normalized file's candidate")
    speedup: Number
    speedup_low: Number = Field(description="lower end of the 95 % interval")
    speedup_high: Number

    def __str__(self) -> str:
        speed = f"{self.speedup:.2f}x [{self.speedup_low:.2f}, {self.speedup_high:.2f}]"
        return f"{speed} the speed of {self.normalized}"


class Confirmation(Choice):
    """A candidate that was raced again, alone with the reference."""

    confirmed: bool
    confidence: float = Field(CONFIDENCE, description="of the intervals in `rows`: all races that may follow share 5 %")
    reason: str = Field(description="why it wins, or does not")
    measured: str = Field(description="its speed-up in this race")
    objection: str = Field("", description="why it is not confirmed")
    rows: tuple[BenchmarkRow, ...] = Field(description="of the candidate on its chosen target")
    race: BenchmarkFacts
    over_normalized: OverNormalized | None = Field(
        None, description="None where the normalized file is not proven faster or slower than the file as it came"
    )


class FromImages(Frozen):
    """The winner with its preprocessing in the graph, against itself with the preprocessing on the host."""

    candidate: str
    opponent: str = Field(description="the winner so far; its preprocessing is on the host, and is timed")
    batch: int = Field(description="the batch size that decided")
    against: BenchmarkRow = Field(description="the candidate against the opponent at that batch size")
    required_speedup: Number
    aa_deviation: Number
    rows: tuple[BenchmarkRow, ...] = Field(description="against FP32 with its preprocessing on the host")
    won: bool
    reason: str


class Decision(Facts):
    """The winner, the verdict on each candidate, and the races that confirm it."""

    winner: str
    target: str = Field("", description="target of the winner: ort-cpu, a session variant of it, or another target")
    session: SessionVariant | None = Field(None, description="session of the winner; None on another target")
    reason: str
    note: str = Field("", description="the end of the first race's reason, as in a choice")
    objective: Objective = "latency"
    batch: int = Field(1, description="the batch size that decided")
    required_speedup: Number = Field(
        description="ratio in the objective to exceed: the configured one, or the noise where that is larger"
    )
    decisions: tuple[Verdict, ...]
    runners_up: tuple[Choice, ...] = Field((), description="the other candidates that may win, best first")
    confirmations: tuple[Confirmation, ...] = Field(
        (), description="in the order of their races; the last is the winner's, unless none is confirmed"
    )
    not_tried: tuple[str, ...] = Field((), description="accepted candidates that none of these races was left for")
    from_images: FromImages | None = Field(None, description="in the decision on a preprocessing in the graph")

    @property
    def choices(self) -> tuple[Choice, ...]:
        """The candidates that may win by the first race, best first."""
        first = Choice(candidate=self.winner, target=self.target, session=self.session, note=self.note)
        return (first, *self.runners_up)

    def decision(self, candidate: str) -> Verdict:
        """Return the verdict on one candidate."""
        return next(verdict for verdict in self.decisions if verdict.candidate == candidate)

    def candidate_changes(self, candidates: Mapping[str, CandidateEntry]) -> Mapping[str, Mapping[str, Any]]:
        """Return the verdicts, and what was measured of the candidates that were raced again."""
        changes: dict[str, dict[str, Any]] = {
            verdict.candidate: {"status": "accepted" if verdict.accepted else "rejected", "reason": verdict.reason}
            for verdict in self.decisions
        }
        for raced in self.confirmations:
            entry = candidates[raced.candidate]
            if entry.parent is None and not raced.confirmed:  # another session of the reference, which wins in its own
                changes[raced.candidate] = {
                    "status": "accepted",
                    "benchmark": tuple(sorted(entry.benchmark, key=lambda row: row.target != self.target)),
                    "target": self.target,
                    "session": self.session and self.session.options,
                    "reason": f"{raced.target}: {raced.objection}: {raced.measured}",
                }
                continue
            accepted = raced.confirmed or entry.parent is None
            prefix = "raced again alone" if accepted else raced.objection
            changes[raced.candidate] = {
                "benchmark": raced.rows + tuple(row for row in entry.benchmark if row.target != entry.target),
                "first_race": entry.benchmark,
                "status": "accepted" if accepted else "rejected",
                "reason": f"{prefix}: {raced.measured}",
            }
        return changes

    def outcome(self) -> Outcome:
        """Return the winner, and its speed-up over the normalized file where normalization made a part of it."""
        last = self.confirmations[-1] if self.confirmations else None
        beside = str(last.over_normalized) if last and last.confirmed and last.over_normalized else ""
        required = self.required_speedup if decides_by_speed(self.objective) else None
        return Outcome(
            winner=self.winner,
            reason=self.reason,
            batch=self.batch,
            required_speedup=required,
            beside=beside,
            confirmation_noise=last.race.aa_deviation if last and last.confirmed else None,
        )


class Fidelity(Frozen):
    """SQNR of a candidate against the network that it was made from; comparable only within one network."""

    network: str
    sqnr_db: Number
