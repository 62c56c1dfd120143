"""MLflow is a sink: it is told what the journal holds, as far as it can be reached, and each event once.

A run appends tracking events to its journal; a `Sender` replays them and remembers how far it came. Sending live,
sending again after the server was down, and `gauntlet sync` are the same thing. Every operation can be repeated without
harm (a run is found again by its tag `gauntlet.key`, a model by its name in its run, a metric is the same point), so a
kill between an operation and the note that it was done loses and doubles nothing.
"""

import contextlib
import json
import logging
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import mlflow
from mlflow import MlflowClient
from mlflow.entities import Dataset, DatasetInput, InputTag

from configs.schema import PipelineConfig
from flows.blank import begin_with_tables
from flows.flips import log_flips
from flows.home import Home
from flows.journal import Journal
from flows.locks import locked
from flows.logged_model import log_model, model_name
from tasks.artifact import write_whole

log = logging.getLogger("gauntlet")

KEY = "gauntlet.key"
URI_VARIABLE = "MLFLOW_TRACKING_URI"


class Sender:
    """Replays one run's tracking events to the server that the run named."""

    def __init__(self, home: Home, folder: Path) -> None:
        self.home, self.folder = home, folder
        self.journal = Journal(folder / "journal.jsonl")
        self.state_path = folder / "sent.json"
        self.offline = False

    def send(self) -> bool:
        """Send what is not sent yet; return whether nothing is left. The first failure ends the attempt."""
        with locked(self.folder / "sent.lock"):
            state = self._state()
            events = list(self.journal)
            if state["events"] >= len(events):
                return True
            place = next((e for e in events if e["op"] == "start"), None)
            if place is None:
                return True
            try:
                require_reachable(place["uri"])
                with tracking_uri(place["uri"]):
                    self._replay(events, state, place)
            except Exception as error:  # whatever the server's trouble is, the run must go on
                if not self.offline:
                    reason = " ".join(str(error).split())[:200]
                    log.warning(
                        "tracking: %s does not take the record (%s); send it later: gauntlet sync", place["uri"], reason
                    )
                self.offline = True
                return False
            self.offline = False
            return True

    def everything_sent(self) -> bool:
        """Tell whether the server has had every event."""
        return bool(self._state()["events"] >= sum(1 for _ in self.journal))

    def run_path(self) -> str | None:
        """Return the place of the run in MLflow's pages, once it is known there."""
        state = self._state()
        if "pipeline" not in state["runs"]:
            return None
        return f"/experiments/{state['experiment']}/runs/{state['runs']['pipeline']}"

    def _state(self) -> dict[str, Any]:
        if self.state_path.exists():
            state: dict[str, Any] = json.loads(self.state_path.read_text())
            return state
        return {"events": 0, "runs": {}, "models": {}, "experiment": None}

    def _replay(self, events: list[dict[str, Any]], state: dict[str, Any], place: dict[str, Any]) -> None:
        client = MlflowClient(place["uri"])
        if state["experiment"] is None:
            state["experiment"] = experiment_id(self.home, client, place["uri"], place["experiment"])
        verbs: dict[str, Callable[[MlflowClient, dict[str, Any], dict[str, Any]], None]] = {
            "start": self._start,
            "params": self._params,
            "metrics": self._metrics,
            "tags": self._tags,
            "file": self._file,
            "flips": self._flips,
            "dataset": self._dataset,
            "model": self._model,
            "end": self._end,
        }
        try:
            for event in events[state["events"] :]:
                if event["op"] in verbs:
                    verbs[event["op"]](client, event, state)
                state["events"] += 1
        finally:  # once, not after each event: what a kill lets us send twice is only there once all the same
            write_whole(self.state_path, json.dumps(state, indent=1))

    def _start(self, client: MlflowClient, event: dict[str, Any], state: dict[str, Any]) -> None:
        key = f"{self.folder.name}/{event['run']}"
        found = client.search_runs([state["experiment"]], f"tags.`{KEY}` = '{key}'", max_results=1)
        if found:
            state["runs"][event["run"]] = found[0].info.run_id
            return
        tags = {KEY: key, **event["tags"]}
        if event["run"] != "pipeline":
            tags["mlflow.parentRunId"] = state["runs"]["pipeline"]
        run = client.create_run(state["experiment"], event["time_ms"], tags, event["name"])
        state["runs"][event["run"]] = run.info.run_id

    def _params(self, client: MlflowClient, event: dict[str, Any], state: dict[str, Any]) -> None:
        params = [mlflow.entities.Param(name, str(value)[:500]) for name, value in event["params"].items()]
        client.log_batch(state["runs"][event["run"]], params=params)

    def _metrics(self, client: MlflowClient, event: dict[str, Any], state: dict[str, Any]) -> None:
        mlflow.log_metrics(
            event["metrics"],
            step=event["step"],
            timestamp=event["time_ms"],
            run_id=state["runs"][event["run"]],
            model_id=state["models"].get(event["run"]),
        )

    def _tags(self, client: MlflowClient, event: dict[str, Any], state: dict[str, Any]) -> None:
        tags = [mlflow.entities.RunTag(name, str(value)) for name, value in event["tags"].items()]
        client.log_batch(state["runs"][event["run"]], tags=tags)

    def _file(self, client: MlflowClient, event: dict[str, Any], state: dict[str, Any]) -> None:
        client.log_artifact(state["runs"][event["run"]], str(self.home.root / event["path"]), event["folder"])

    def _flips(self, client: MlflowClient, event: dict[str, Any], state: dict[str, Any]) -> None:
        log_flips(client, state["runs"][event["run"]], event["flips"], self.home.root / event["test"])

    def _dataset(self, client: MlflowClient, event: dict[str, Any], state: dict[str, Any]) -> None:
        source = json.dumps(event["source"])
        dataset = Dataset(event["name"], event["digest"], "local", source, None, json.dumps(event["profile"]))
        inputs = [DatasetInput(dataset, [InputTag("mlflow.data.context", event["context"])])]
        client.log_inputs(state["runs"][event["run"]], inputs)

    def _model(self, client: MlflowClient, event: dict[str, Any], state: dict[str, Any]) -> None:
        run_id = state["runs"][event["run"]]
        found = client.search_logged_models(
            [state["experiment"]], f"name = '{model_name(event['name'])}' AND source_run_id = '{run_id}'"
        )
        ready = [model for model in found if str(model.status) == "READY"]
        state["models"][event["run"]] = (
            ready[0].model_id if ready else log_model(run_id, event, self.home.root / event["path"])
        )

    def _end(self, client: MlflowClient, event: dict[str, Any], state: dict[str, Any]) -> None:
        client.set_terminated(state["runs"][event["run"]], event["status"], event["time_ms"])


def place(home: Home, config: PipelineConfig) -> tuple[str, str]:
    """Return the server and the experiment that a run is recorded in."""
    uri = config.tracking.uri or os.environ.get(URI_VARIABLE) or home.mlflow_uri
    return uri, config.tracking.experiment or config.name


def make_ready(home: Home, config: PipelineConfig) -> None:
    """Make the tables and the experiment of a new local store: seconds that can pass while something else starts.

    Where that fails, the run says so when it sends its first events, and goes on.
    """
    uri, experiment = place(home, config)
    if uri.startswith("sqlite:"):
        with contextlib.suppress(Exception):
            if uri == home.mlflow_uri:
                with locked(home.locks / "mlflow-experiment"):
                    begin_with_tables("mlflow", home.mlflow_db)
            experiment_id(home, MlflowClient(uri), uri, experiment)


@contextmanager
def tracking_uri(uri: str) -> Iterator[None]:
    """Name the server for MLflow's fluent calls; they leave it in the environment, where the next run would find it."""
    before = os.environ.get(URI_VARIABLE)
    mlflow.set_tracking_uri(uri)
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(URI_VARIABLE, None)
        else:
            os.environ[URI_VARIABLE] = before


def require_reachable(uri: str, timeout_s: float = 1.0) -> None:
    """Raise `OSError` when a tracking server's port is closed: the client itself would wait and retry for long."""
    parts = urlsplit(uri)
    if parts.scheme in ("http", "https") and parts.hostname:
        port = parts.port or (443 if parts.scheme == "https" else 80)
        socket.create_connection((parts.hostname, port), timeout=timeout_s).close()


def experiment_id(home: Home, client: MlflowClient, uri: str, name: str) -> str:
    """Return the experiment, made where there is none. A fresh SQLite file does not survive two makers at once."""
    with locked(home.locks / "mlflow-experiment"):
        experiment = client.get_experiment_by_name(name)
        if experiment is None:
            folder = home.root / "mlartifacts" / name
            tags = {"mlflow.experimentKind": "custom_model_development"}
            location = folder.as_uri() if uri.startswith("sqlite:") else None
            return str(client.create_experiment(name, location, tags))
        if experiment.lifecycle_stage == "deleted":
            client.restore_experiment(experiment.experiment_id)
        return str(experiment.experiment_id)
