"""Where the time of a call goes, by the runtime's own profiler, after the race and never during it."""

from pathlib import Path

import numpy as np
from pydantic import Field

from tasks.benchmark.client import WorkerClient, WorkerFailed
from tasks.benchmark.contender import Contender, Plan
from tasks.frozen import Frozen, Number
from tasks.runtime.trace import Profile, summarise

CALLS = (3, 20)
"""At least and at most so many: a trace has an event of about 600 bytes for each node of each call."""
SECONDS = 0.3
"""About how long they may take together."""


class Profiled(Frozen):
    """One contender's profile, or why there is none."""

    candidate: str
    target: str
    batch: int
    unprofiled_ms: Number = Field(description="median of a call in the race")
    profile: Profile | None
    error: str | None = None


def profiled(contender: Contender, inputs: Path, plan: Plan, folder: Path) -> tuple[Profiled, Path | None]:
    """Profile a contender at the plan's first batch size, in a worker of its own; return it with the trace's file."""
    entry, batch = contender.entry, plan.batch_sizes[0]
    median_ms = float(np.median(contender.round_medians_ms[batch]))
    calls = round(min(max(CALLS[0], SECONDS * 1000 / max(median_ms, 1e-3)), CALLS[1]))
    request = {"do": "profile", "batch": batch, "calls": calls + 1, "folder": str(folder)}
    facts = Profiled(candidate=contender.name, target=entry.target, batch=batch, unprofiled_ms=median_ms, profile=None)
    try:
        with WorkerClient(entry.command) as worker:
            worker.load(entry.model, inputs, entry.threads or plan.threads, plan.timeout_s, entry.options)
            trace = Path(worker.ask(request, plan.timeout_s)["trace"])
            return facts.replace(profile=summarise(trace)), trace
    except (WorkerFailed, OSError, ValueError, KeyError) as error:  # a runtime without a profiler, or with another one
        return facts.replace(error=str(error)), None
