"""The facts of a benchmark: the race, its A/A control, and the timing of each candidate."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from gauntlet.core.facts import Facts, Outcome, Section
from gauntlet.core.frozen import Frozen, Number
from gauntlet.core.run_report import BenchmarkRow, CandidateEntry
from gauntlet.race.contender import Contender, Plan
from gauntlet.race.machine_load import MachineLoad
from gauntlet.race.objective import speedup_text
from gauntlet.race.session_options import SessionVariant
from gauntlet.race.target_examiner import ModelOnTarget
from gauntlet.runtime.profiler_trace import Profile, summarize_profile
from gauntlet.runtime.worker_client import WorkerClient, WorkerFailed

CALLS = (3, 20)
"""Least and most calls: a trace has an event of about 600 bytes for each node of each call."""
SECONDS = 0.3
"""Approximate time for all calls."""


class CandidateProfile(Frozen):
    """One contender's profile, or the error that prevented it."""

    candidate: str
    target: str
    batch: int
    unprofiled_ms: Number = Field(description="median latency of a call in the race")
    profile: Profile | None
    error: str | None = None


def profile_candidate(
    contender: Contender, inputs: Path, plan: Plan, folder: Path
) -> tuple[CandidateProfile, Path | None]:
    """Profile a contender at the plan's first batch size, in its own worker; return it with the path of the trace."""
    entry, batch = contender.entry, plan.batch_sizes[0]
    median_ms = float(np.median(contender.round_medians_ms[batch]))
    calls = round(min(max(CALLS[0], SECONDS * 1000 / max(median_ms, 1e-3)), CALLS[1]))
    request = {"do": "profile", "batch": batch, "calls": calls + 1, "folder": str(folder)}
    facts = CandidateProfile(
        candidate=contender.name, target=entry.target, batch=batch, unprofiled_ms=median_ms, profile=None
    )
    try:
        with WorkerClient(entry.command) as worker:
            worker.load(entry.model, inputs, entry.threads or plan.threads, plan.timeout_s, entry.options)
            trace = Path(worker.request(request, plan.timeout_s)["trace"])
            return facts.replace(profile=summarize_profile(trace)), trace
    except (WorkerFailed, OSError, ValueError, KeyError) as error:  # no profiler, or another trace format
        return facts.replace(error=str(error)), None


class CandidateTiming(Frozen):
    """The measurements of one candidate."""

    candidate: str
    error: str | None = Field(description="why it was not measured")
    target: str = Field("", description="chosen target: a session variant or another target; its rows come first")
    own_noise_db: Number = Field(math.inf, description="SQNR of its outputs against exact ones of the same file, in dB")
    rows: tuple[BenchmarkRow, ...]
    size_bytes: int = Field(0, description="of its file with its weights")
    load_ms: Number
    first_call_ms: Number
    peak_rss_bytes: int = Field(description="peak memory of the worker process")
    warm_up_blocks: dict[int, int] = Field(description="half blocks before the first round, by batch size")
    round_medians_ms: dict[int, tuple[Number, ...]] = Field(description="raw values by batch size, one per round")
    round_quartiles_ms: dict[int, tuple[Number, ...]] = Field(description="lower quartiles, for the speed-ups")


class BenchmarkFacts(Facts):
    """The race and its A/A control."""

    reference: str
    threads: int
    rounds: int
    block_ms: Number
    resolution: Number
    machine: MachineLoad
    aa_deviation: Number = Field(description="largest distance from 1 of the FP32 model's speed-up over itself")
    control: tuple[BenchmarkRow, ...]
    results: tuple[CandidateTiming, ...]
    session_variants: tuple[SessionVariant, ...] = ()
    other_targets: tuple[ModelOnTarget, ...] = Field((), description="the candidates on other targets")
    profiles: tuple[CandidateProfile, ...] = ()

    @property
    def reference_rows(self) -> tuple[BenchmarkRow, ...]:
        """The rows of the reference in its default session, which all others are compared with."""
        return tuple(row for row in self.result(self.reference).rows if row.verdict == "reference")

    def base_of(self, candidate: str) -> str:
        """Return what a candidate's speed-up is over: the reference, for another target of itself with its own."""
        return f"{self.reference} on {self.reference_rows[0].target}" if candidate == self.reference else self.reference

    def is_quiet(self, max_aa_deviation: float) -> bool:
        """Return whether the control was within a limit, and no other work took processors from the race."""
        return self.aa_deviation <= max_aa_deviation and not self.machine.is_disturbed(self.threads)

    def chosen_rows(self, candidate: str) -> tuple[BenchmarkRow, ...]:
        """Return the rows of one candidate on its chosen target."""
        result = self.result(candidate)
        return tuple(row for row in result.rows if row.target == result.target)

    def result(self, candidate: str) -> CandidateTiming:
        """Return the timing of one candidate."""
        return next(r for r in self.results if r.candidate == candidate)

    def session(self, candidate: str) -> SessionVariant | None:
        """Return the candidate's chosen session variant; None where another target was chosen."""
        return next((s for s in self.session_variants if s.name == self.result(candidate).target), None)

    def candidate_changes(self, candidates: Mapping[str, CandidateEntry]) -> Mapping[str, Mapping[str, Any]]:
        """Return what was measured of each candidate."""
        sessions = [(result, self.session(result.candidate)) for result in self.results]
        return {
            r.candidate: {"benchmark": r.rows, "target": r.target or None, "session": session and session.options}
            for r, session in sessions
        }

    def section(self) -> Section | None:
        """Return the profiles."""
        known = [p for p in self.profiles if p.profile is not None and any(o.ms > 0 for o in p.profile.operators)]
        if not known:
            return None
        values = {"profiles": known, "reference": self.reference}
        return Section("Where the time goes", template="kernels.html.j2", values=values)

    def first_results(self) -> tuple[str, ...]:
        """Return the speed-ups at the first batch size, the largest first; the winner is raced again after that."""
        rows = {result.candidate: result.rows[0] for result in self.results if result.rows}
        width = max(map(len, rows), default=0)
        return tuple(
            f"{name:{width}}  {speedup_text(row)}, batch {row.batch}"
            for name, row in sorted(rows.items(), key=lambda item: -item[1].speedup)
        )

    def outcome(self) -> Outcome:
        """Return the noise of the race, and what else was at work."""
        return Outcome(noise=self.aa_deviation, other_load_cores=self.machine.other_load_cores)
