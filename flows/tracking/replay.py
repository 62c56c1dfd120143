"""Sends the events of a run's journal to an MLflow server.

Every step can be repeated: a run is found by its tag `gauntlet.key`, a model by its name in its run, and a metric is
the same point. So a kill before the position is saved neither loses nor duplicates anything. An event that the server
refuses is noted with its reason and skipped.
"""

import hashlib
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import mlflow
from mlflow import MlflowClient
from mlflow.entities import Dataset, DatasetInput, InputTag, LoggedModelOutput, Param, RunTag
from mlflow.exceptions import MlflowException
from requests import RequestException

from flows.record.home import Home
from flows.record.locks import locked
from flows.tracking.flips import log_flips
from flows.tracking.logged_model import log_model, model_name
from flows.tracking.metric_names import legal
from flows.tracking.sender import PARENT, State
from flows.tracking.server import experiment_id, tracking_client, tracking_uri, upload_time
from gauntlet.core.artifact import write_atomically
from gauntlet.core.errors import one_line, without_password

LINKED_FROM_BYTES = 1 << 18
"""Smaller files, such as pictures, are in every run that has them; of others there is one, and links to it."""
Place = dict[str, str]
"""Where content is on the server: `model_id`, or `run_id`, `folder` and `name`."""


class SentContent:
    """A file of the home with the place of every content on one server.

    The server may have lost it since: whoever links to a place looks first whether it is there.
    """

    def __init__(self, home: Home, uri: str) -> None:
        self.path = home.sent / f"{_short_digest(without_password(uri))}.json"
        self.locks = home.locks

    @contextmanager
    def one_sender(self, content: str) -> Iterator[None]:
        """Keep other processes from sending the same content meanwhile."""
        with locked(self.locks / f"mlflow-{self.path.stem}-{_short_digest(content)}"):
            yield

    def place(self, content: str) -> Place | None:
        """Return where the content was sent to, if it was."""
        return self._places().get(content)

    def add(self, content: str, **place: str) -> None:
        """Note where the content is now."""
        with locked(self.locks / f"mlflow-{self.path.stem}"):
            write_atomically(self.path, json.dumps(self._places() | {content: place}, indent=1))

    def _places(self) -> dict[str, Place]:
        with suppress(FileNotFoundError, TypeError, ValueError):  # damaged: it is looked for, or sent again
            return dict(json.loads(self.path.read_bytes()))
        return {}


def _short_digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


log = logging.getLogger("gauntlet")

KEY = "gauntlet.key"
TRY_AGAIN = (401, 403, 408, 429)  # HTTP statuses of a server that may take the same event later

Event = dict[str, Any]


def replay(home: Home, folder: Path, events: list[Event], state: State, uri: str) -> None:
    """Send the events after the run's position, which is saved in `folder/sent.json` however this ends."""
    client = tracking_client(home, uri)
    with tracking_uri(uri):
        if state["experiment"] is None:
            experiment = next(event["experiment"] for event in events if event["op"] == "start")
            state["experiment"] = experiment_id(home, client, experiment)
        sending = _Replay(home, folder.name, client, state)
        try:
            for event in events[state["events"] :]:
                try:
                    sending.send(event)
                except Exception as error:
                    if not is_refusal(error):
                        raise
                    reason = without_password(one_line(error))
                    state["refused"].append({"op": event["op"], "run": event["run"], "reason": reason})
                    log.warning("MLflow refused %(op)s of %(run)s: %(reason)s", state["refused"][-1])
                state["events"] += 1
        finally:  # once, not after each event: what is sent twice after a kill is recorded once all the same
            write_atomically(folder / "sent.json", json.dumps(state, indent=1))


def is_refusal(error: Exception) -> bool:
    """Tell whether the server will not take an event later either."""
    if isinstance(error, MlflowException):
        status = int(error.get_http_status_code())  # type: ignore[no-untyped-call]
        return 400 <= status < 500 and status not in TRY_AGAIN
    return isinstance(error, ValueError | TypeError | FileNotFoundError) and not isinstance(error, RequestException)


class _Replay:
    """Sends events, by the method with the name of their `op`; other events are for other readers."""

    def __init__(self, home: Home, run_id: str, client: MlflowClient, state: State) -> None:
        self.home, self.run_id, self.client, self.state = home, run_id, client, state
        self.sent = SentContent(home, client.tracking_uri)

    def send(self, event: Event) -> None:
        handler = getattr(self, f"_{event['op']}", None)
        if handler is None:
            return
        if event["op"] != "start" and event["run"] not in self.state["runs"]:
            raise ValueError(f"the run {event['run']} was refused")
        with upload_time(self.home.root / event["path"] if "path" in event else None):
            handler(event, self.state["runs"].get(event["run"]))

    def _start(self, event: Event, _run: str) -> None:
        key = f"{self.run_id}/{event['run']}"
        runs = [*self.client.search_runs([self.state["experiment"]], f"tags.`{KEY}` = '{key}'", max_results=1)]
        if not runs:
            tags = {KEY: key, **event["tags"]}
            if event["run"] != PARENT:
                tags["mlflow.parentRunId"] = self.state["runs"][PARENT]
            runs = [self.client.create_run(self.state["experiment"], event["time_ms"], tags, event["name"])]
        self.state["runs"][event["run"]] = runs[0].info.run_id

    def _params(self, event: Event, run: str) -> None:
        self.client.log_batch(run, params=[Param(legal(k), str(v)[:500]) for k, v in event["params"].items()])

    def _metrics(self, event: Event, run: str) -> None:
        model = self.state["models"].get(event["run"])
        metrics = {legal(name): value for name, value in event["metrics"].items()}
        mlflow.log_metrics(metrics, event["step"], timestamp=event["time_ms"], run_id=run, model_id=model)

    def _tags(self, event: Event, run: str) -> None:
        self.client.log_batch(run, tags=[RunTag(legal(name), str(value)) for name, value in event["tags"].items()])

    def _file(self, event: Event, run: str) -> None:
        self.client.log_artifact(run, str(self.home.root / event["path"]), event["folder"])

    def _artifact(self, event: Event, run: str) -> None:
        """Send a stage's artifact, or a file that says where it is: on the server already, or in a shared store."""
        path, folder = self.home.root / event["path"], event["folder"]
        if event.get("uri"):
            self._link(event, run, event["uri"])
            return
        if event["size_bytes"] < LINKED_FROM_BYTES and path.exists():
            self._send(run, path, folder)
            return
        with self.sent.one_sender(event["sha256"]):
            place = self.sent.place(event["sha256"])
            if place is None or not self._has(place):
                self._send(run, path, folder)
                self.sent.add(event["sha256"], run_id=run, folder=folder, name=path.name)
            elif (place["run_id"], place["folder"]) != (run, folder):
                self._link(event, run, f"runs:/{place['run_id']}/{place['folder']}/{place['name']}")

    def _send(self, run: str, path: Path, folder: str) -> None:
        for file in sorted(path.parent.iterdir()):  # weights may be beside it
            self.client.log_artifact(run, str(file), folder)

    def _link(self, event: Event, run: str, uri: str) -> None:
        link = {"sha256": event["sha256"], "size_bytes": event["size_bytes"], "uri": uri}
        self.client.log_dict(run, link, f"{event['folder']}/{Path(event['path']).name}.link.json")

    def _has(self, place: Place) -> bool:
        """Tell whether a file is where it was sent to."""
        run, folder = place["run_id"], place["folder"]
        try:
            active = self.client.get_run(run).info.lifecycle_stage == "active"
            names = [file.path.rpartition("/")[2] for file in self.client.list_artifacts(run, folder)]
            return active and place["name"] in names
        except MlflowException as error:
            if not is_refusal(error):
                raise
            return False

    def _flips(self, event: Event, run: str) -> None:
        log_flips(self.client, run, event["flips"], self.home.root / event["test"])

    def _dataset(self, event: Event, run: str) -> None:
        source, profile = json.dumps(event["source"]), json.dumps(event["profile"])
        dataset = Dataset(event["name"], event["digest"], "local", source, None, profile)
        self.client.log_inputs(run, [DatasetInput(dataset, [InputTag("mlflow.data.context", event["context"])])])

    def _model(self, event: Event, run: str) -> None:
        """Send a model, or link the run to the one with the same content that is on the server already."""
        key = f"model-{event['sha256']}"
        with self.sent.one_sender(key):
            model = (self.sent.place(key) or {}).get("model_id")
            if model is None or not self._is_ready(model):
                model = self._model_on_server(event, run) or log_model(run, event, self.home.root / event["path"])
                self._remove_incomplete(event, run)
                self.sent.add(key, model_id=model)
            outputs = self.client.get_run(run).outputs
            known = {output.model_id for output in outputs.model_outputs} if outputs else set[str]()
            if self.client.get_logged_model(model).source_run_id != run and model not in known:
                self.client.log_outputs(run, [LoggedModelOutput(model, step=0)])
        self.state["models"][event["run"]] = model

    def _model_on_server(self, event: Event, run: str) -> str | None:
        """Return the model with the same content: sent by this run before a kill, or by another home."""
        same = [f"params.sha256 = '{event['sha256']}'"] if "sha256" in event else []
        for query in (_models_of(event, run), *same):
            models = self.client.search_logged_models([self.state["experiment"]], query)
            if ready := [each.model_id for each in models if str(each.status) == "READY"]:
                return str(ready[0])
        return None

    def _remove_incomplete(self, event: Event, run: str) -> None:
        """Remove what a kill, or a server that created it without a reply, has left of this run's model."""
        for model in self.client.search_logged_models([self.state["experiment"]], _models_of(event, run)):
            if str(model.status) != "READY":
                self.client.delete_logged_model(model.model_id)

    def _is_ready(self, model: str) -> bool:
        """Tell whether a model is on the server, whole."""
        try:
            return str(self.client.get_logged_model(model).status) == "READY"
        except MlflowException as error:
            if not is_refusal(error):
                raise
            return False

    def _end(self, event: Event, run: str) -> None:
        self.client.set_terminated(run, event["status"], event["time_ms"])


def _models_of(event: Event, run: str) -> str:
    """Return MLflow's query for the models of a name that a run has sent."""
    return f"name = '{model_name(event['name'])}' AND source_run_id = '{run}'"
