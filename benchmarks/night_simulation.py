"""A night of 1,000 models on 50 workers of 5 kinds, simulated with measured rates: how long it takes, and what is full.

    python benchmarks/night_simulation.py [--models 1000] [--workers 10]

A model goes through the pipeline on a worker of the first kind, alone on its host, and its candidates are then raced on
one worker of each other kind. All of it shares one object store and one Prefect server with its database. Seconds are
those of docs/results/pipeline-1-overhead.json and pipeline-3-presets.json; what the store moves, and how many
transactions a run needs and the server can do, is measured here with real servers, by the seconds of their processors,
so that other work on the machine matters little. Needs PostgreSQL, and the extras `postgres`, `store` and `dev`.
"""

import argparse
import heapq
import itertools
import json
import os
import random
import sys
import tempfile
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import psutil
from killable_servers import ADDRESS, Platform, platform
from random_kills import Machine
from results import Figure, Measured, add_result_option, conclude

from flows.record.home import Home
from gauntlet.core.object_store import open_store
from gauntlet.core.run_report import RunReport

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results"
KINDS = ("pipeline", "x86", "Arm", "GPU", "browser")
"""The first makes the candidates; the others only race."""
NIGHT_S = 8 * 3600
FLOW_RUNS = 100
STORE_BYTES = 64 << 20
MEGABYTES = 317.0
"""All artifacts of a run of ResNet-18 with seven candidates (median of seven reports): what a run moves to the store. A
race fetches less, and is counted with as much."""


@dataclass(frozen=True)
class Rates:
    """What one model needs, and what the shared servers can do."""

    pipeline_s: tuple[float, ...]
    """Seconds of whole runs, one of which each model takes."""
    race_share: float
    """Of a run's seconds, those of its race: the same again on each other kind."""
    run_commits: float
    server_commits_per_second: float
    store_mb_per_second: float


@dataclass(frozen=True)
class Night:
    """What came of one simulated night."""

    seconds: float
    busy: dict[str, float]
    """Share of the night in which a resource was in use."""

    @property
    def bottleneck(self) -> str:
        """The resource that was in use the most."""
        return max(self.busy, key=lambda name: self.busy[name])


class Simulation:
    """Events in the order of their times; every resource serves whoever came first.

    A worker is held while its model waits for the store or the server, as it is in a run.
    """

    def __init__(self, rates: Rates, workers: int) -> None:
        self.rates, self.workers = rates, workers
        self.events, self.order = list[tuple[float, int, str, Job]](), itertools.count()
        self.idle, self.waiting = dict.fromkeys(KINDS, workers), {kind: deque[Job]() for kind in KINDS}
        self.free, self.used = {"store": 0.0, "server": 0.0}, defaultdict[str, float](float)

    def run(self, run_seconds: Sequence[float]) -> Night:
        """Take models with such durations through the pipeline, then race each on every other kind."""
        now = 0.0
        for run_s in run_seconds:
            self.plan(0, "arrives", Job(KINDS[0], run_s))
        while self.events:
            now, _, what, job = heapq.heappop(self.events)
            if what == "arrives":
                self.waiting[job.kind].append(job)
            elif what == "done":
                self.used[job.kind] += (now - job.began) / self.workers
                self.idle[job.kind] += 1
                for kind in KINDS[1:] if job.kind == KINDS[0] else ():
                    self.plan(now, "arrives", Job(kind, job.run_s))
            else:
                self.share(now, what, job)
            while self.idle[job.kind] and self.waiting[job.kind]:
                self.begin(now, self.waiting[job.kind].popleft())
        return Night(now, {name: seconds / now for name, seconds in self.used.items()})

    def plan(self, when: float, what: str, job: "Job") -> None:
        """Let something happen at a time."""
        heapq.heappush(self.events, (when, next(self.order), what, job))

    def begin(self, now: float, job: "Job") -> None:
        """Let a worker begin a model's run or race."""
        self.idle[job.kind] -= 1
        job.began = now
        self.plan(now + job.run_s * self.part(job), "store", job)

    def share(self, now: float, name: str, job: "Job") -> None:
        """Let the store move a model's files, then the server its transactions."""
        if name == "store":
            seconds = MEGABYTES / self.rates.store_mb_per_second
        else:
            seconds = self.rates.run_commits * self.part(job) / self.rates.server_commits_per_second
        self.free[name] = max(now, self.free[name]) + seconds
        self.used[name] += seconds
        self.plan(self.free[name], "server" if name == "store" else "done", job)

    def part(self, job: "Job") -> float:
        """Return how much of a whole run a job is."""
        return 1.0 if job.kind == KINDS[0] else self.rates.race_share


@dataclass
class Job:
    """One model on one kind of worker."""

    kind: str
    run_s: float
    began: float = 0.0


def simulate(rates: Rates, models: int, workers: int, seed: int = 1) -> Night:
    """Return the night of so many models, each of which takes as long as one of the measured runs."""
    chance = random.Random(seed)
    return Simulation(rates, workers).run([chance.choice(rates.pipeline_s) for _ in range(models)])


def stage_seconds() -> tuple[tuple[float, ...], float]:
    """Return the seconds of the presets' runs, and the share of a ResNet-18's run that its race takes."""
    presets = json.loads((RESULTS / "pipeline-3-presets.json").read_text())
    stages = {row[0]: row[2] for row in json.loads((RESULTS / "pipeline-1-overhead.json").read_text())["rows"]}
    seconds = tuple(float(row[presets["columns"].index("seconds")]) for row in presets["rows"])
    return seconds, float(stages["benchmark"]) / float(stages["whole process"])


def cpu_seconds(process: psutil.Process) -> float:
    """Return the processor's seconds that a process and those that it has started have used."""
    times = [each.cpu_times() for each in (process, *process.children(recursive=True))]
    return sum(time.user + time.system for time in times)


def store_rate(servers: Platform, folder: Path) -> float:
    """Return the megabytes that the store's server moves in a second of its processor, there and back."""
    process = psutil.Process(servers.objects.process.pid) if servers.objects.process else psutil.Process()
    (folder / "model").write_bytes(os.urandom(STORE_BYTES))
    before = cpu_seconds(process)
    artifact = open_store(folder / "here", ADDRESS).put(folder / "model")
    open_store(folder / "there", ADDRESS).path(artifact)
    return 2 * STORE_BYTES / 1e6 / (cpu_seconds(process) - before)


def commits(servers: Platform) -> int:
    """Return how many transactions both databases have done."""
    statement = "SELECT sum(xact_commit) FROM pg_stat_database WHERE datname IN ('prefect', 'mlflow')"
    return int(servers.cluster.query("postgres", statement))


def commit_rate(servers: Platform) -> float:
    """Return the transactions that Prefect's server does in a second of its processor, for flow runs and their states.

    It is one process, so this is also the most that it does in a second, if the database is on other cores.
    """
    from prefect import flow
    from prefect.client.orchestration import get_client
    from prefect.settings import PREFECT_API_URL, temporary_settings
    from prefect.states import Completed, Running

    @flow
    def nothing() -> None:
        """Exist, to have runs."""

    url, server = servers.environment["PREFECT_API_URL"], servers.running["scheduler"]
    with temporary_settings({PREFECT_API_URL: url}), get_client(sync_client=True) as client:
        before, used = commits(servers), cpu_seconds(server)
        for _ in range(FLOW_RUNS):
            made = client.create_flow_run(nothing)
            client.set_flow_run_state(made.id, Running())
            client.set_flow_run_state(made.id, Completed())
        return (commits(servers) - before) / (cpu_seconds(server) - used)


def measured_rates(folder: Path) -> tuple[Rates, list[tuple[str, ...]]]:
    """Return the rates, and a row on where each comes from."""
    with platform(folder) as servers, patch.dict(os.environ, servers.environment):
        one = Machine("a", folder / "a", servers.environment)
        one.folder.mkdir()
        store, before = store_rate(servers, one.folder), commits(servers)
        one.work(lambda: True)
        used, capacity = commits(servers) - before, commit_rate(servers)
        if one.exits != [[0]]:
            raise SystemExit((one.folder / "output").read_text())
        done = Home(one.folder / "home", "").require_run() / "report.json"
        stages = len(RunReport.model_validate_json(done.read_bytes()).stages)
    seconds, share = stage_seconds()
    rates = Rates(seconds, share, used, capacity, store)
    runs = ", ".join(f"{each:g}" for each in seconds)
    return rates, [
        ("seconds of a run", runs, "docs/results/pipeline-3-presets.json, one of them a model"),
        ("share of its race", f"{share:.3f}", "docs/results/pipeline-1-overhead.json"),
        ("transactions of a run", f"{used}", f"PostgreSQL's count, of both databases, around a run of {stages} stages"),
        (
            "transactions a second",
            f"{capacity:.0f}",
            f"the same count over the processor's seconds of Prefect's server, {FLOW_RUNS} flow runs",
        ),
        (
            "MB a second of the store",
            f"{store:.0f}",
            f"{STORE_BYTES >> 20} MiB put and fetched, over the seconds of its server's processor",
        ),
    ]


def measure(models: int, workers: int) -> Measured:
    """Measure the rates, and simulate the night with them, and with half and twice as many workers."""
    with tempfile.TemporaryDirectory() as text:
        rates, rows = measured_rates(Path(text))
    night = simulate(rates, models, workers)
    figures = [Figure(name=f"{models} models on {workers * len(KINDS)} workers", value=round(night.seconds / 3600, 2),
                      unit="h", goal=f"at most {NIGHT_S / 3600:g} h", met=night.seconds <= NIGHT_S)]  # fmt: skip
    for name, share in sorted(night.busy.items(), key=lambda item: -item[1]):
        full = " (the bottleneck)" if name == night.bottleneck else ""
        figures.append(Figure(name=f"in use: {name}{full}", value=round(100 * share, 1), unit="%"))
    for factor in (0.5, 2, 8):
        other = simulate(rates, models, max(1, int(workers * factor)))
        rows.append((f"{factor:g} times as many workers", f"{other.seconds / 3600:.2f} h", f"full: {other.bottleneck}"))
    return Measured(
        "A night is long enough for a thousand models on fifty workers",
        f"{models} models, {workers} workers of each of {len(KINDS)} kinds: {', '.join(KINDS)}. Runs take as long "
        f"as on the machine of those results, and move {MEGABYTES:g} MB; each server has one core for itself. Networks "
        "and failures are left out",
        tuple(figures),
        ("what", "figure", "from"),
        rows,
    )


def main(words: Sequence[str] | None = None) -> int:
    """Measure and simulate; return 1 when the night is too short."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=10, help="of each kind")
    add_result_option(parser)
    asked = parser.parse_args(words)
    found = measure(asked.models, asked.workers)
    return conclude(found, "machines", asked.result)


if __name__ == "__main__":
    sys.exit(main())
