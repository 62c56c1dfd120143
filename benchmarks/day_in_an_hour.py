"""A day of a served model in an hour: its inputs drift, it is retrained and promoted, and its accuracy recovers.

    python benchmarks/day_in_an_hour.py [--folder FOLDER] [--no-kills]

A `gauntlet up --serve` starts without a champion. A run from Prefect's form makes the first one. Handwritten digits
are sent to it, then the same with black and white exchanged, and their labels. From there on nobody does anything: the
scheduled watch raises the alarm, Prefect starts the retraining, and the server swaps the model. On the way, each part
is killed once (SIGKILL). Prints two tables and exits with 1 when something was lost, doubled, or did not recover.
"""

import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from results import Figure, Measured, conclude, script_parser
from running_platform import BATCH, RunningPlatform, until

from configs.loader import load
from flows.record.journal import Journal
from flows.servers.password import password_file
from gauntlet.datasets.digits import Digits
from wings.lifecycle.library.promotion.ledger import Ledger
from wings.lifecycle.prefect_flows.retrain_record import RetrainRecord, RetrainRecords

NAME = "digits-small-cnn"
SETTINGS = (
    "benchmark.batch_sizes=[1]",
    "benchmark.rounds=6",
    "benchmark.block_ms=5",
    "benchmark.restart_processes=false",
    "numerics.samples=8",
    "optimize=[]",
    "quantize=[{kind: dynamic, weights: s8}]",
)
"""How fast the candidates are decides nothing here."""
LIMITS = ("--max-accuracy-drop", "0.05", "--max-slowdown", "50", "--rounds", "6", "--unresolved", "accept")
"""There are 360 old samples, and the machine does other things."""
PARTS = ("serving", "watcher", "worker", "mlflow", "prefect")
"""In the order in which they are killed."""
RECOVERED = 0.05
"""How much less accurate the retrained model may be on the changed stream than the first one was before the change."""


@dataclass
class Phase:
    """A part of the stream, and what the model made of it."""

    name: str
    version: str
    requests: list[str]
    correct: int

    @property
    def accuracy(self) -> float:
        """The share of images predicted right."""
        return self.correct / (BATCH * len(self.requests))


@dataclass
class Day:
    """The platform, what was sent to it, and what was killed."""

    platform: RunningPlatform
    kills: Collection[str]
    """The parts that are killed."""
    phases: list[Phase] = field(default_factory=list)
    killed: list[tuple[str, str]] = field(default_factory=list)

    def begin(self) -> None:
        """Start the platform, let a run of its form become the first champion, and wait until it is served."""
        output = self.platform.up("--watch-every", "30", *LIMITS)
        assert "there is no model yet" in output, output
        config = load(NAME, SETTINGS).model_dump(mode="json")
        self.platform.wait_for_run(self.platform.start("gauntlet/on-demand", {"config": config}))
        [run] = self.platform.home.run_folders()
        self.platform.wait_for_run(self.platform.start("promote/promote", {"source": run.name}))
        until(self.platform.version, "the first champion is served")

    def stream(self, name: str, images: np.ndarray, labels: np.ndarray, *, kill: str = "") -> Phase:
        """Send images, wait until they are logged, and send their labels; a part is killed after half of them."""
        phase = Phase(name, self.platform.version(), [], 0)
        starts = range(0, len(images) - BATCH + 1, BATCH)
        wait = None
        for start in starts:
            if kill and start == starts[len(starts) // 2]:
                self.wait_until_logged(phase)  # a kill may cost what came in the last half second, and no more
                wait = self.kill(kill, f"half of the {name} images")
            request, chosen = f"{name}-{start}", slice(start, start + BATCH)
            phase.correct += int(np.sum(self.platform.ask(request, images[chosen]) == labels[chosen]))
            phase.requests.append(request)
        if wait:
            wait()
        self.wait_until_logged(phase)
        self.platform.tell(phase.requests, labels[: len(phase.requests) * BATCH])
        until(lambda: set(phase.requests) <= set(self.platform.labeled()), "the labels are logged")
        self.phases.append(phase)
        print(f"{name}: {phase.accuracy:.1%} of {BATCH * len(phase.requests)} images, version {phase.version}")
        return phase

    def wait_until_logged(self, phase: Phase) -> None:
        """Wait until the log has all requests of a phase."""
        until(lambda: set(phase.requests) <= set(self.platform.logged(phase.version)), "the requests are logged")

    def wait_for_look(self, phase: Phase) -> str:
        """Wait until the watch has looked at a phase to its end, and return the verdict."""
        sent = sum(BATCH * len(part.requests) for part in self.phases if part.version == phase.version)

        def verdict() -> str:
            status = self.platform.look(phase.version)
            labeled = status.risk.labeled if status and status.risk else 0
            return status.verdict if status and status.samples == labeled == sent else ""

        return str(until(verdict, f"a look at {phase.name}"))

    def kill(self, part: str, when: str) -> Callable[[], Any]:
        """Kill a part, if it is one of those to be killed; what is returned waits until it is there again."""
        if part not in self.kills:
            return lambda: None
        print(f"kills {part}: {when}", flush=True)
        self.killed.append((part, when))
        return self.platform.kill(part)

    def retraining(self) -> RetrainRecord:
        """Wait for the retraining, whose worker and servers are killed on the way; return its record."""
        run = until(lambda: self.runs()[1:], "a retraining begins")[0]
        until(lambda: "train" in self.stages(run), "it trains")
        if "worker" in self.kills:
            self.kill("worker", "the network is trained")()
            run = until(lambda: self.runs()[2:], "the retraining goes on")[0]
        waits = [self.kill("mlflow", "the retraining goes on")]
        until(lambda: "benchmark" in self.stages(run), "it measures")
        waits.append(self.kill("prefect", "the candidates are measured"))
        for wait in waits:
            wait()
        [record] = until(RetrainRecords(self.platform.home, NAME).all, "its record")
        until(lambda: record.result, "the retraining ends")
        return record

    def runs(self) -> list[Path]:
        """Return the folders of all runs, oldest first."""
        return self.platform.home.run_folders()

    def stages(self, run: Path) -> set[str]:
        """Return the stages that a run has begun."""
        return {event["stage"] for event in Journal(run / "journal.jsonl") if event["op"] == "work_started"}


def images_of(split: str) -> tuple[np.ndarray, np.ndarray]:
    """Return digits as the model takes them, shape (n, 3, 32, 32), and their classes."""
    digits = Digits().load().splits[split]
    assert digits.labels is not None
    return digits.take(slice(None))["input"], digits.labels


def live(day: Day, drifted: int) -> Measured:
    """Live through the day of a platform that serves a champion, and return what it showed."""
    old, old_labels = images_of("test")
    new, new_labels = images_of("train")
    verdicts = [day.wait_for_look(day.stream("morning", old, old_labels))]
    phase = day.stream("noon", -new[:drifted], new_labels[:drifted], kill="serving")
    day.kill("watcher", "the labels of the changed images are there")()
    verdicts.append(day.wait_for_look(phase))
    before = day.platform.status()["parts"]["serving"]["pid"]
    record = day.retraining()
    until(lambda: day.platform.version() != phase.version, "the retrained model is served")
    day.platform.gauntlet("sync")
    verdicts.append(day.wait_for_look(day.stream("evening", -old, old_labels)))
    same = day.platform.status()["parts"]["serving"]["pid"] == before
    assert record.result is not None
    print(f"{record.result.outcome}: {record.result.reason}")
    return Measured(
        "A drifting stream is noticed, retrained and predicted again without a person, through the loss of every part",
        f"{NAME}; {drifted} of the training images and all test images, black and white exchanged; "
        + (f"killed once: {', '.join(day.kills)}" if day.kills else "nothing is killed")
        + ("; the server when its log has what it answered" if "serving" in day.kills else "")
        + f"; load average of the machine {os.getloadavg()[2]:.0f}",
        tuple(figures(day, same_server=same)),
        ("what", "version", "images", "right, %", "verdict of the watch, or when it was killed"),
        [
            *(
                (phase.name, phase.version, str(BATCH * len(phase.requests)), f"{100 * phase.accuracy:.1f}", verdict)
                for phase, verdict in zip(day.phases, verdicts, strict=True)
            ),
            *((f"{part} killed", "", "", "", when) for part, when in day.killed),
        ],
    )


def figures(day: Day, *, same_server: bool) -> Iterator[Figure]:
    """Yield what came of the day, with its goals."""
    from mlflow import MlflowClient

    home = day.platform.home
    account = password_file(home).read_text().strip()  # the environment may have another home's
    client = MlflowClient(day.platform.mlflow.replace("://", f"://{account}@"))
    morning, noon, evening = (round(100 * phase.accuracy, 1) for phase in day.phases)
    yield Figure(name="accuracy before the change", value=morning, unit="%")
    yield Figure(name="after it", value=noon, unit="%")
    least = round(morning - 100 * RECOVERED, 1)
    yield Figure.at_least("after the retraining, on changed images that were not sent before", evening, least, "%")
    sent = [request for phase in day.phases for request in phase.requests]
    versions = {phase.version for phase in day.phases}
    logged = sum((day.platform.logged(version) for version in versions), start=Counter[str]())
    yield Figure.exactly("answered requests that the log does not have", len(set(sent) - set(logged)), 0)
    yield Figure.exactly("requests that it has twice", sum(count > 1 for count in logged.values()), 0)
    yield Figure.exactly("labels that it does not have", len(set(sent) - set(day.platform.labeled())), 0)
    records = RetrainRecords(home, NAME).all()
    yield Figure.exactly("retrainings", len(records), 1)
    ops = [entry.op for entry in Ledger.of(home.root, NAME).entries()]
    yield Figure.exactly("promotions, that of the first champion included", ops.count("promote"), 2)
    yield Figure.exactly("refused, undone or rolled back", len(ops) - 2 * ops.count("promote"), 0)
    yield Figure.exactly("versions in the registry", len(client.search_model_versions(f"name = '{NAME}'")), 2)
    yield Figure.exactly("exit code of gauntlet history", day.platform.gauntlet("history", NAME).returncode, 0)
    experiment = client.get_experiment_by_name(NAME)
    parents = client.search_runs([experiment.experiment_id], "tags.stage = 'pipeline'")
    yield Figure.exactly("runs in MLflow, beyond those in the home", len(parents) - len(day.runs()), 0)
    killed = len(day.killed)
    restarts = [part["restarts"] for part in day.platform.status()["parts"].values()]
    yield Figure.exactly("parts killed, each once, and restarted", sum(restarts), killed)
    yield Figure.exactly("restarts of the server for the promotion", int(not same_server), 0)


def main(words: Sequence[str] | None = None) -> int:
    """Live through the day; return 1 when a goal is missed."""
    parser = script_parser(__doc__)
    parser.add_argument("--folder", type=Path, help="for the platform's home; by default a temporary one")
    parser.add_argument("--drifted", type=int, default=800, help="changed images that get labels")
    parser.add_argument("--no-kills", action="store_true")
    options = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as temporary:
        platform = RunningPlatform(options.folder or Path(temporary), NAME)
        day = Day(platform, () if options.no_kills else PARTS)
        try:
            day.begin()
            measured = live(day, options.drifted)
        finally:
            platform.down()
    return conclude(measured, "monitoring", options.result)


if __name__ == "__main__":
    sys.exit(main())
