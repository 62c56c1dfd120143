"""SIGKILL at random moments: what is lost, what is published twice, and which benchmarks run side by side.

    python benchmarks/random_kills.py [--kills 30] [--seed 1]

Two machines (homes of their own on this host) run small models one after the other, with candidates on two worker
processes each. They share an object store, and servers of Prefect and MLflow whose tables are in PostgreSQL. At random
moments one of these is ended with SIGKILL: a run's flow process, one of its workers, Prefect's server (the scheduler),
the store's server, the database. A server is started again within seconds; a command that failed is given again, as a
person would. At the end, every journal, the store and MLflow are compared. Needs PostgreSQL, and the extras `postgres`,
`store` and `dev`. Exits with 1 when a goal is missed.
"""

import os
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

import numpy as np
import onnx
import psutil
from killable_servers import ADDRESS, Platform, platform
from results import Figure, Measured, conclude, script_parser

from flows.record.home import Home
from flows.record.journal import Journal, everything_sent
from gauntlet.core.artifact import open_store
from gauntlet.core.run_report import RunReport

GAUNTLET = Path(sys.executable).with_name("gauntlet")
GRAPH = (
    '<ir_version: 8, opset_import: ["": 18]> m (float[n,16] x) => (float[n,8] y) {{ h = MatMul(x, w)  y = Relu(h) }}'
)
SETTINGS = ("benchmark.batch_sizes=[1]", "benchmark.rounds=6", "benchmark.block_ms=2", "benchmark.profile=false")
SETTINGS += ("benchmark.restart_processes=false", "numerics.samples=8", "optimize=[]", "benchmark.threads=1")
SETTINGS += ("quantize=[{kind: dynamic, weights: s8}, {kind: dynamic, weights: u8}]",)
SETTINGS += ("runner={kind: processes, workers: 2}",)
TIMED = ("benchmark", "explain", "select", "package")
VICTIMS = ("flow process", "worker", "scheduler", "store", "database")
MAX_ATTEMPTS = 8


@dataclass
class Outcome:
    """What a storm of kills has left."""

    killed: list[str]
    lost: list[str]
    twice: list[str]
    side_by_side: int
    looks: int
    """Moments at which a race was seen."""
    exits: list[list[int]]
    """Of the commands, by model."""
    seconds: float


@dataclass
class Machine:
    """One that runs models until it is told to stop; a command that fails is given again."""

    name: str
    folder: Path
    environment: dict[str, str]
    process: psutil.Popen | None = None
    exits: list[list[int]] = field(default_factory=list)
    """Of the commands, by model."""

    @property
    def home(self) -> Home:
        """Its home; the store is shared."""
        return Home(self.folder / "home", "")

    def work(self, ended: Callable[[], bool]) -> None:
        """Run a model, and the next one, until it is time to end; the one that has begun is finished."""
        while not self.exits or not ended():
            path = self.folder / f"{self.name}-{len(self.exits)}.onnx"
            write_model(path)
            self.exits.append([])
            while len(self.exits[-1]) < MAX_ATTEMPTS and self.exits[-1][-1:] != [0]:
                self.exits[-1].append(self.run("run", path.name, *(w for s in SETTINGS for w in ("--set", s))))

    def run(self, *words: str) -> int:
        """Run one command and return its exit code."""
        environment = {**os.environ, **self.environment, "GAUNTLET_HOME": str(self.home.root)}
        environment["PREFECT_HOME"] = str(self.folder / "prefect")
        with (self.folder / "output").open("ab") as output:
            command = [str(GAUNTLET), *words]
            self.process = psutil.Popen(command, cwd=self.folder, env=environment, stdout=output, stderr=output)
            return int(self.process.wait())

    def workers(self) -> list[psutil.Process]:
        """Return the processes that do the work of candidates now."""
        with suppress(psutil.Error):
            children = self.process.children() if self.process else []
            return [child for child in children if "spawn_main" in " ".join(child.cmdline())]
        return []


def write_model(path: Path) -> None:
    """Write a small model whose weights depend on its name."""
    proto = onnx.parser.parse_model(GRAPH.format())
    weights = np.random.default_rng(list(path.stem.encode())).standard_normal((16, 8), np.float32)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    path.write_bytes(proto.SerializeToString())


class Sampler(threading.Thread):
    """Looks for timed processes of two races at the same time, all the time."""

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        self.marker, self.ended, self.overlaps, self.looks = str(folder).encode(), threading.Event(), 0, 0

    def run(self) -> None:
        """Look until told to end; moments of one overlap that follow each other count once."""
        before = False
        while not self.ended.wait(0.05):
            races = {race for race in map(self._race, psutil.pids()) if race is not None}
            self.looks += bool(races)
            self.overlaps += len(races) > 1 and not before
            before = len(races) > 1

    def _race(self, pid: int) -> int | None:
        """Return which process has started a timed process of ours, or None for any other."""
        with suppress(OSError, psutil.Error):
            folder = Path(f"/proc/{pid}")
            if b"gauntlet.runtime.worker" in (folder / "cmdline").read_bytes().split(b"\0"):
                return psutil.Process(pid).ppid() if self.marker in (folder / "environ").read_bytes() else None
        return None


def kill_at_random(
    platform: Platform, machines: Sequence[Machine], kills: int, seed: int, span_s: float, minutes: float
) -> list[str]:
    """Kill so often, or for so long, a random victim at a random moment; return whom."""
    end = time.monotonic() + 60 * minutes
    chance, killed = random.Random(seed), list[str]()
    order = [victim for _ in range(-(-kills // len(VICTIMS))) for victim in chance.sample(VICTIMS, len(VICTIMS))]
    for victim in order[:kills]:
        time.sleep(chance.uniform(0, span_s))
        if time.monotonic() > end:
            break
        if victim in ("flow process", "worker"):
            while not (target := living(chance.sample(machines, len(machines)), victim)):
                time.sleep(0.05)
            with suppress(psutil.NoSuchProcess):
                target.kill()
        else:
            platform.kill(victim)
            time.sleep(chance.uniform(0, 5))
            platform.start(victim)
        killed.append(victim)
        print(f"{len(killed)} of {kills}: {victim}", flush=True)
    return killed


def living(machines: Sequence[Machine], victim: str) -> psutil.Process | None:
    """Return a flow process or a worker of the first machine that has one."""
    for machine in machines:
        flow = [machine.process] if machine.process and machine.process.is_running() else []
        if processes := machine.workers() if victim == "worker" else flow:
            return processes[-1]
    return None


def losses(machine: Machine) -> list[str]:
    """Return every result that a machine has lost: not passed, done again, not in the store, or not in MLflow."""
    home, lost = machine.home, list[str]()
    lost += [f"model {number}: exit codes {codes}" for number, codes in enumerate(machine.exits) if codes[-1] != 0]
    events = [event for run in home.run_folders() for event in Journal(run / "journal.jsonl")]
    done = [e for e in events if e["op"] == "work_finished" and e["stage"] not in TIMED and not e["cached"]]
    times = Counter((event["stage"], event["candidate"], event["key"]) for event in done)
    lost += [f"done {count} times: {key}" for key, count in times.items() if count > 1]
    another = open_store(machine.folder / "another", ADDRESS)
    for run in home.run_folders():
        if not everything_sent(run):
            lost.append(f"not in MLflow: {run.name}")
        if (report := run / "report.json").exists():
            run_report = RunReport.model_validate_json(report.read_bytes())
            artifacts = [artifact for stage in run_report.stages for artifact in stage.artifacts.values()]
            lost += [f"not in the store: {a.path}" for a in artifacts if not another.is_intact(a)]
    return lost


def published_twice(uri: str) -> list[str]:
    """Return what MLflow has more than once: a run, a candidate of a run, a model; and what it shows as running."""
    from mlflow import MlflowClient

    client, twice = MlflowClient(uri), list[str]()
    for experiment in client.search_experiments():
        runs = client.search_runs([experiment.experiment_id], max_results=1000)
        models = client.search_logged_models([experiment.experiment_id])
        names = [(run.data.tags.get("mlflow.parentRunId"), run.info.run_name) for run in runs]
        names += [("model", model.params["sha256"]) for model in models]
        twice += [f"{experiment.name}: {name}" for name, count in Counter(names).items() if count > 1]
        twice += [f"{experiment.name}: {run.info.run_name} is running" for run in runs if run.info.status == "RUNNING"]
    return twice


def storm(folder: Path, kills: int, seed: int, span_s: float, minutes: float = 60) -> Outcome:
    """Let two machines work while this process kills; then compare what every journal, the store and MLflow have."""
    began = time.monotonic()
    with platform(folder) as servers, patch.dict(os.environ, servers.environment):
        machines = [Machine(name, folder / name, servers.environment) for name in ("a", "b")]
        ended, sampler = threading.Event(), Sampler(folder)
        threads = [threading.Thread(target=machine.work, args=(ended.is_set,), daemon=True) for machine in machines]
        for machine in machines:
            machine.folder.mkdir()
        for thread in (sampler, *threads):
            thread.start()
        try:
            killed = kill_at_random(servers, machines, kills, seed, span_s, minutes)
        finally:
            ended.set()
        for thread in threads:
            thread.join()
        sampler.ended.set()
        for machine in machines:
            machine.run("sync")
        lost = [f"{machine.name}: {loss}" for machine in machines for loss in losses(machine)]
        twice = published_twice(servers.environment["MLFLOW_TRACKING_URI"])
    exits = [codes for machine in machines for codes in machine.exits]
    return Outcome(killed, lost, twice, sampler.overlaps, sampler.looks, exits, time.monotonic() - began)


def measure(kills: int, seed: int, span_s: float, minutes: float) -> Measured:
    """Kill at random, and count."""
    with tempfile.TemporaryDirectory() as text:
        outcome = storm(Path(text), kills, seed, span_s, minutes)
    print(*outcome.lost, *outcome.twice, sep="\n")
    again = sum(len(codes) - 1 for codes in outcome.exits)
    counts = {"results lost": len(outcome.lost), "results published twice": len(outcome.twice)}
    counts["benchmarks side by side"] = outcome.side_by_side
    figures = tuple(Figure.exactly(name, n) for name, n in counts.items())
    figures += (Figure(name="kills", value=len(outcome.killed)),)
    figures += (Figure(name="runs that passed in the end", value=len(outcome.exits)),)
    figures += (Figure(name="commands that were given again", value=again),)
    killed = Counter(outcome.killed)
    return Measured(
        "SIGKILL at random moments loses nothing, doubles nothing, and starts no second benchmark",
        f"two machines on one host, small models, two workers each; a kill every {span_s / 2:g} s on average, and "
        f"servers started again within 5 s; {outcome.seconds / 60:.0f} minutes; races were seen at "
        f"{outcome.looks} looks, 20 a second at most; the load at the end was {os.getloadavg()[0]:.1f}",
        figures,
        ("killed", "times"),
        [(victim, str(killed[victim])) for victim in VICTIMS],
    )


def main(words: Sequence[str] | None = None) -> int:
    """Run it; return 1 when a goal is missed."""
    parser = script_parser(__doc__)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--span", type=float, default=30, metavar="S", help="longest time between two kills")
    parser.add_argument("--minutes", type=float, default=60, help="no kill after so many, however few there were")
    options = parser.parse_args(words)
    measured = measure(options.kills, options.seed, options.span, options.minutes)
    return conclude(measured, "machines", options.result)


if __name__ == "__main__":
    sys.exit(main())
