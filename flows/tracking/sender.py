"""Sends a run's tracking events to MLflow, each once, whenever the server can be reached.

A run appends tracking events to its journal; a `Sender` replays them and remembers how far it came. Sending during the
run, sending again after an outage, and `gauntlet sync` are the same operation. Every step can be repeated without harm
(a run is found again by its tag `gauntlet.key`, a model by its name in its run, a metric is the same point), so a kill
between a step and the note that it was done neither loses nor duplicates anything.
"""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlflow
from mlflow import MlflowClient
from mlflow.entities import Dataset, DatasetInput, InputTag

from flows.record.home import Home
from flows.record.journal import Journal
from flows.record.locks import locked
from flows.tracking.flips import log_flips
from flows.tracking.logged_model import log_model, model_name
from flows.tracking.server import experiment_id, require_reachable, tracking_uri
from gauntlet.core.artifact import write_atomically

log = logging.getLogger("gauntlet")

KEY = "gauntlet.key"
PARENT = "pipeline"
"""The parent run's name in the journal; a child run has its candidate's name."""


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
            start = next((e for e in events if e["op"] == "start"), None)
            if start is None:
                return True
            try:
                require_reachable(start["uri"])
                with tracking_uri(start["uri"]):
                    self._replay(events, state, start)
            except Exception as error:  # whatever is wrong with the server, the run goes on
                if not self.offline:
                    reason = " ".join(str(error).split())[:200]
                    log.warning("MLflow at %s did not accept the record (%s). Fix: gauntlet sync", start["uri"], reason)
                self.offline = True
                return False
            self.offline = False
            return True

    def everything_sent(self) -> bool:
        """Tell whether the server has received every event."""
        return bool(self._state()["events"] >= sum(1 for _ in self.journal))

    def run_path(self) -> str | None:
        """Return the path of the run's page in MLflow, once the server knows the run."""
        state = self._state()
        if PARENT not in state["runs"]:
            return None
        return f"/experiments/{state['experiment']}/runs/{state['runs'][PARENT]}"

    def _state(self) -> dict[str, Any]:
        if self.state_path.exists():
            state: dict[str, Any] = json.loads(self.state_path.read_text())
            return state
        return {"events": 0, "runs": {}, "models": {}, "experiment": None}

    def _replay(self, events: list[dict[str, Any]], state: dict[str, Any], start: dict[str, Any]) -> None:
        client = MlflowClient(start["uri"])
        if state["experiment"] is None:
            state["experiment"] = experiment_id(self.home, client, start["uri"], start["experiment"])
        handlers: dict[str, Callable[[MlflowClient, dict[str, Any], dict[str, Any]], None]] = {
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
                if event["op"] in handlers:
                    handlers[event["op"]](client, event, state)
                state["events"] += 1
        finally:  # once, not after each event: what is sent twice after a kill is recorded once all the same
            write_atomically(self.state_path, json.dumps(state, indent=1))

    def _start(self, client: MlflowClient, event: dict[str, Any], state: dict[str, Any]) -> None:
        key = f"{self.folder.name}/{event['run']}"
        found = client.search_runs([state["experiment"]], f"tags.`{KEY}` = '{key}'", max_results=1)
        if found:
            state["runs"][event["run"]] = found[0].info.run_id
            return
        tags = {KEY: key, **event["tags"]}
        if event["run"] != PARENT:
            tags["mlflow.parentRunId"] = state["runs"][PARENT]
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
