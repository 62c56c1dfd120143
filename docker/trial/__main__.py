"""The part of docker/try.sh that has an engine and settings: `python docker/trial --settings FILE -- COMPOSE...`.

Builds the images, starts the services, and looks at them as a person and as a client would. docker/try.sh takes down
what this starts. Exit code 0 when every check passed, 1 otherwise.
"""

import argparse
import json
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pages
from containers import Services, TrialError, image_sizes, wait_until
from PIL import Image
from results import Figure, add_result_option, write_result
from servers import MODEL, Servers
from sklearn.datasets import load_digits

from configs.loader import load

QUICK = ("benchmark.batch_sizes=[1]", "benchmark.rounds=6", "benchmark.block_ms=5", "benchmark.restart_processes=false")
IMAGES = tuple(f"onnx-gauntlet:{target}" for target in ("cpu", "gpu", "serving"))
INTERRUPTION_S = 20.0
DIGIT = 0  # of scikit-learn's digits: the image that serving is asked about


@dataclass
class Trial:
    """What is tried, in the order of its methods, and what was measured."""

    services: Services
    servers: Servers
    folder: Path
    figures: dict[str, tuple[float, str]] = field(default_factory=dict)
    compared: int = 0

    def build_and_start(self) -> None:
        """Build every image, and start everything but serving, which has no model yet."""
        began = time.monotonic()
        self.services.do("--profile", "*", "build")
        self.measured("all images built", time.monotonic() - began)
        for name, size in image_sizes(IMAGES).items():
            self.measured(f"image {name}", size, "GB")
        self.measured("all services healthy", self.services.start())
        self.make_bucket()

    def make_bucket(self) -> None:
        """Make the bucket of the object store, as its owner would."""
        put = "import urllib.request as r; r.urlopen(r.Request('http://127.0.0.1:9000/models', method='PUT'))"
        self.services.do("exec", "-T", "store", "/opt/venv/bin/python", "-c", put)

    def run_by_click(self) -> None:
        """Start the small demo in Prefect's page, promote its bundle, and look at both pages."""
        self.servers.configure(config(6))
        began = time.monotonic()
        with pages.chromium() as browser:
            run = pages.click_run(browser, self.servers)
            self.servers.wait_for(run, "COMPLETED")
            self.measured("the small demo, from a click to its end", time.monotonic() - began)
            self.services.do("exec", "-T", "worker", "gauntlet", "promote", self.report()["run_id"])
            pages.look_at_records(browser, self.servers, run)
        say("Prefect's page and MLflow's page show the run and the champion")

    def serve(self) -> None:
        """Start serving, which finds the champion in MLflow; ask it for a prediction, in its page too."""
        self.measured("serving healthy", self.services.start("serving"))
        digits = load_digits()
        self.digit = self.folder / "digit.png"
        image = Image.fromarray((digits.images[DIGIT] * 255 / 16).astype("uint8")).resize((32, 32))
        image.save(self.digit)
        expected = str(digits.target[DIGIT])
        with pages.chromium() as browser:
            shown = pages.predict_in_page(browser, self.servers, self.digit)
        if shown != expected:
            raise TrialError(f"the page of serving shows {shown!r} for the digit {expected}")
        if (found := set(self.servers.refusals().values())) != {401}:
            raise TrialError(f"requests without a password or token got {sorted(found)}, expected 401 for all")
        say(f"serving's page shows {shown} for the digit {expected}; 401 without a password or token")

    def lose_servers(self) -> None:
        """Interrupt the store and kill the database and both servers while a run is in progress: it completes."""
        before = self.servers.records()
        run = self.servers.trigger(config(7))
        wait_until(lambda: self.servers.finished_stages(run), "the second run has begun")
        self.services.interrupt("store", INTERRUPTION_S)
        for service in ("postgres", "prefect-server", "mlflow"):
            self.kill(service)
        self.servers.wait_for(run, "COMPLETED")
        self.services.do("exec", "-T", "worker", "gauntlet", "sync")
        self.compare(before)

    def lose_the_worker(self) -> None:
        """Kill the worker and its run: the automation closes the run, and the next one takes over what was finished."""
        before = self.servers.records()
        other = config(8)
        run = self.servers.trigger(other)
        wait_until(lambda: self.servers.finished_stages(run) > 2, "the third run has finished a stage")
        self.kill("worker")
        began = time.monotonic()
        self.servers.wait_for(run, "CRASHED")
        self.measured("a run killed with its worker is marked as crashed", time.monotonic() - began)
        self.servers.wait_for(self.servers.trigger(other), "COMPLETED")
        if not any(stage["cached"] for stage in self.report()["stages"]):
            raise TrialError("the run after the killed one has repeated every stage")
        self.compare(before)

    def lose_serving_and_store(self) -> None:
        """Kill serving: the same prediction. Kill the store, which forgets everything: the same run completes."""
        before, prediction = self.servers.records(), self.servers.prediction(self.digit.read_bytes())
        self.kill("serving")
        if (found := self.servers.prediction(self.digit.read_bytes())) != prediction:
            raise TrialError(f"serving predicted {prediction}, and {found} after it was killed")
        self.kill("store")
        self.make_bucket()
        self.servers.wait_for(self.servers.trigger(config(8)), "COMPLETED")
        self.compare(before)

    def kill(self, service: str) -> None:
        """Kill a service, and measure until it is back."""
        self.measured(f"{service} healthy again after it was killed", self.services.kill(service))

    def compare(self, before: dict[str, str]) -> None:
        """Check that nothing of `before` is lost."""
        after = self.servers.records()
        if lost := {what: state for what, state in before.items() if after.get(what) != state}:
            raise TrialError(f"lost: {lost}")
        self.compared = len(before)
        say(f"nothing is lost: {len(before)} of {len(before)} records are as they were")

    def report(self) -> dict[str, Any]:
        """Return the newest run's report, as the worker has it."""
        report: dict[str, Any] = json.loads(self.services.do("exec", "-T", "worker", "gauntlet", "show", "--json"))
        return report

    def result(self, conditions: str) -> dict[str, Any]:
        """Return what was measured, as docs/benchmarks.md needs it."""
        figures = [Figure(name=name, value=value, unit=unit) for name, (value, unit) in self.figures.items()]
        kills = sum("after it was killed" in name for name in self.figures)
        figures.insert(
            0, Figure(name="services that came back after a kill", value=kills, unit="of 6", goal="all", met=kills == 6)
        )
        figures.insert(1, Figure(name="records lost", value=0, unit=f"of {self.compared}", goal="0", met=True))
        return {
            "command": "docker/try.sh",
            "topic": "containers",
            "claim": "Every service of the Compose file comes back after a crash, and no record is lost",
            "conditions": conditions,
            "figures": figures,
        }

    def measured(self, what: str, value: float, unit: str = "s") -> None:
        """Keep a figure and print it."""
        self.figures[what] = (round(value, 2 if unit == "GB" else 0), unit)
        say(f"{what}: {self.figures[what][0]:g} {unit}")


def config(epochs: int) -> dict[str, Any]:
    """Return the configuration of the small demo with a short benchmark; other epochs make other networks."""
    return load(MODEL, (*QUICK, f"train.epochs={epochs}")).model_dump(mode="json")


def say(line: str) -> None:
    """Print a line at once."""
    print(f"try: {line}", flush=True)


def main() -> int:
    """Try everything; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--settings", type=Path, required=True, help="the environment file of Compose")
    add_result_option(parser)
    parser.add_argument("--conditions", default="", help="what the result says about the machine's engine")
    parser.add_argument("compose", nargs="+", help="the command of Compose with its files")
    options = parser.parse_args()
    settings = dict(line.split("=", 1) for line in options.settings.read_text().split())
    with TemporaryDirectory() as folder:
        trial = Trial(Services(tuple(options.compose)), Servers(settings), Path(folder))
        steps = (
            trial.build_and_start,
            trial.run_by_click,
            trial.serve,
            trial.lose_servers,
            trial.lose_the_worker,
            trial.lose_serving_and_store,
        )
        try:
            for step in steps:
                step()
        except (TrialError, OSError) as error:
            print(f"try: {step.__name__}: {error}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            return 130
    if options.result:
        write_result(options.result, **trial.result(options.conditions))
    say("everything passed")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
