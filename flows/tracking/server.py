"""The MLflow server that a run is recorded on: its address, its experiment, and whether it can be reached."""

import contextlib
import math
import os
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from flows.record.home import Home
from flows.record.locks import locked
from flows.servers.database_templates import copy_template
from flows.servers.local_servers import runs_mlflow
from flows.servers.password import mlflow_variables
from gauntlet.core.errors import without_password
from gauntlet.runtime.resources import environment_variables

if TYPE_CHECKING:
    from mlflow import MlflowClient

    from configs.schema import PipelineConfig  # it imports every stage

URI_VARIABLE = "MLFLOW_TRACKING_URI"
TIMEOUT_VARIABLE = "MLFLOW_HTTP_REQUEST_TIMEOUT"
REQUEST_TIMEOUT_S = float(os.environ[TIMEOUT_VARIABLE])  # set by `flows`, or by the user
FLUENT_CALLS = threading.RLock()
MIN_UPLOAD_RATE = 5e6  # bytes a second; a server that stores a file before it responds gets more time


def tracking_server(home: Home, config: "PipelineConfig") -> tuple[str, str]:
    """Return the address of the server, and the name of the experiment that a run is recorded in."""
    uri = config.tracking.uri or os.environ.get(URI_VARIABLE) or home.mlflow_uri
    return uri, config.tracking.experiment or config.name


def with_password(home: Home, uri: str) -> str:
    """Return the address as the environment has it, where it differs by the password alone.

    For the home's own server, the variables of an MLflow account are set in this process: only it has this password.
    """
    if runs_mlflow(home, uri):
        os.environ |= {name: value for name, value in mlflow_variables(home, uri).items() if name != URI_VARIABLE}
    known = os.environ.get(URI_VARIABLE, "")
    return known if without_password(known) == uri else uri


def own_store(home: Home, uri: str) -> str:
    """Return the home's own store for the address of its own server, which has another one tomorrow; others stay."""
    return home.mlflow_uri if runs_mlflow(home, uri) else uri


def recorded_uri(home: Home, start: dict[str, Any]) -> str:
    """Return the address of the server that a run was recorded on, by the first event of its journal."""
    return with_password(home, own_store(home, start["uri"])) if start["uri"] else home.mlflow_uri


def prepare_local_store(home: Home, config: "PipelineConfig") -> None:
    """Create the tables and the experiment of a new local store ahead of time: it takes seconds."""
    uri, experiment = tracking_server(home, config)
    if uri.startswith("sqlite:"):
        with contextlib.suppress(Exception):  # reported when the run sends its first events
            experiment_id(home, tracking_client(home, uri), experiment)


def tracking_client(home: Home, uri: str) -> "MlflowClient":
    """Return a client of a server; the home's own database begins as a copy of an empty one."""
    from mlflow import MlflowClient

    if uri == home.mlflow_uri:
        with locked(home.locks / "mlflow-experiment"):
            copy_template("mlflow", home.mlflow_db)
    return MlflowClient(uri)


@contextmanager
def tracking_uri(uri: str) -> Iterator[None]:
    """Set the server for MLflow's fluent calls, one thread at a time: MLflow has one for the whole process.

    MLflow also sets the environment variable, which other threads take for the user's: it is restored at once.
    """
    import mlflow

    with FLUENT_CALLS:
        with environment_variables({URI_VARIABLE: uri}):
            mlflow.set_tracking_uri(uri)
        yield


def require_reachable(uri: str, timeout_s: float = 2.0) -> None:
    """Raise `OSError` when a tracking server does not respond in time, with whatever status."""
    parts = urlsplit(uri)
    if parts.scheme in ("http", "https") and parts.hostname:
        address = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl().rstrip("/")
        with contextlib.suppress(urllib.error.HTTPError):
            urllib.request.urlopen(f"{address}/health", timeout=timeout_s).close()


@contextmanager
def upload_time(path: Path | None) -> Iterator[None]:
    """Allow MLflow's requests the time to upload a file and those beside it, which may be its weights."""
    size = sum(file.stat().st_size for file in path.parent.iterdir() if file.is_file()) if path else 0
    with environment_variables({TIMEOUT_VARIABLE: str(math.ceil(REQUEST_TIMEOUT_S + size / MIN_UPLOAD_RATE))}):
        yield


def experiment_id(home: Home, client: "MlflowClient", name: str) -> str:
    """Return the experiment's id; create or restore it where necessary."""
    with locked(home.locks / "mlflow-experiment"):  # two processes cannot initialize one SQLite file
        experiment = client.get_experiment_by_name(name)
        if experiment is None:
            # A name that leads nowhere else.
            folder = urllib.parse.quote(name, safe=" ") if name.strip(".") else name.replace(".", "_")
            path = home.root / "mlartifacts" / folder
            tags = {"mlflow.experimentKind": "custom_model_development"}
            location = path.as_uri() if client.tracking_uri.startswith("sqlite:") else None
            return str(client.create_experiment(name, location, tags))
        if experiment.lifecycle_stage == "deleted":
            client.restore_experiment(experiment.experiment_id)
        return str(experiment.experiment_id)
