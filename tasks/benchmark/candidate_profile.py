"""Profile a candidate with the runtime's profiler, after the race."""

from pathlib import Path

import numpy as np
from pydantic import Field

from gauntlet.core.frozen import Frozen, Number
from gauntlet.race.contender import Contender, Plan
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
