"""What the servers of the trial hold, asked over HTTP as any client would."""

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import requests
from containers import TrialError, wait_until

MODEL = "digits-small-cnn"
TIMEOUT_S = 30
FINAL = {"COMPLETED", "FAILED", "CANCELLED", "CRASHED"}

Fields = dict[str, Any]


class Servers:
    """Prefect, MLflow and serving, with the ports and passwords of the environment file."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        ports = (settings[f"{name}_PORT"] for name in ("PREFECT", "MLFLOW", "SERVING"))
        self.prefect, self.mlflow, self.serving = (f"http://127.0.0.1:{port}" for port in ports)
        self.password = settings["PREFECT_AUTH_STRING"]
        self.mlflow_account = "gauntlet", settings["MLFLOW_PASSWORD"]
        self.token = settings["SERVING_TOKEN"]

    @cached_property
    def deployment(self) -> str:
        """The id of the deployment that a person starts."""
        return str(self._prefect("GET", "deployments/name/gauntlet/on-demand")["id"])

    def configure(self, config: Fields) -> None:
        """Give the deployment its settings, as a person would in its form."""
        self._prefect("PATCH", f"deployments/{self.deployment}", {"parameters": {"config": config}})

    def trigger(self, config: Fields) -> str:
        """Start a run through the API and return its id."""
        body = {"parameters": {"config": config}}
        return str(self._prefect("POST", f"deployments/{self.deployment}/create_flow_run", body)["id"])

    def flow_runs(self) -> dict[str, str]:
        """Return the state of each run of that deployment, the newest first."""
        body = {"deployments": {"id": {"any_": [self.deployment]}}, "sort": "START_TIME_DESC"}
        return {run["id"]: run["state_type"] for run in self._prefect("POST", "flow_runs/filter", body)}

    def finished_stages(self, run: str) -> int:
        """Return how many works and gates of a run are completed."""
        body = {"flow_runs": {"id": {"any_": [run]}}, "task_runs": {"state": {"type": {"any_": ["COMPLETED"]}}}}
        return int(self._prefect("POST", "task_runs/count", body))

    def wait_for(self, run: str, state: str, patience_s: float = 900.0) -> None:
        """Return when a run has ended in a state; `TrialError` when it ends in another one."""
        wait_until(lambda: self.flow_runs()[run] in FINAL, f"run {run} has ended", patience_s)
        found = self.flow_runs()[run]
        if found != state:
            raise TrialError(f"run {run} ended {found}, expected {state}")

    def mlflow_runs(self) -> dict[str, str]:
        """Return the status of each run that MLflow has of the model."""
        experiment = self._mlflow("GET", "experiments/get-by-name", experiment_name=MODEL)["experiment"]
        body = {"experiment_ids": [experiment["experiment_id"]], "max_results": 1000}
        found = self._mlflow("POST", "runs/search", body)["runs"]
        return {run["info"]["run_id"]: run["info"]["status"] for run in found}

    def champion(self) -> str:
        """Return the version that is the champion."""
        found = self._mlflow("GET", "registered-models/alias", name=MODEL, alias="champion")
        return str(found["model_version"]["version"])

    def prediction(self, image: bytes) -> Fields:
        """Return what serving predicts for an image: the label, its confidence, and the version of the model."""
        head = {"Authorization": f"Bearer {self.token}", "Content-Type": "image/png"}
        done = requests.post(f"{self.serving}/v2/models/{MODEL}/predict", data=image, headers=head, timeout=TIMEOUT_S)
        done.raise_for_status()
        told = done.json()
        return {"version": told["model_version"], "top": told["predictions"][0]["top"][0]}

    def records(self) -> dict[str, str]:
        """Return everything that must not be lost: what it is -> its state. What is in progress is left out."""
        runs = {f"run {run}": state for run, state in self.flow_runs().items() if state in FINAL}
        sent = {f"MLflow run {run}": status for run, status in self.mlflow_runs().items() if status != "RUNNING"}
        return {**runs, **sent, "champion": self.champion()}

    def refusals(self) -> dict[str, int]:
        """Return the status of requests without a password or token."""
        addresses = (
            f"{self.prefect}/api/deployments/name/gauntlet/on-demand",
            f"{self.mlflow}/api/2.0/mlflow/registered-models/get?name={MODEL}",
            f"{self.serving}/v2/models/{MODEL}",
        )
        return {address: requests.get(address, timeout=TIMEOUT_S).status_code for address in addresses}

    def _prefect(self, method: str, path: str, body: Fields | None = None) -> Any:
        name, _, password = self.password.partition(":")
        done = requests.request(
            method, f"{self.prefect}/api/{path}", json=body, auth=(name, password), timeout=TIMEOUT_S
        )
        done.raise_for_status()
        return done.json() if done.content else None

    def _mlflow(self, method: str, path: str, body: Fields | None = None, **query: str) -> Fields:
        address = f"{self.mlflow}/api/2.0/mlflow/{path}"
        done = requests.request(method, address, json=body, params=query, auth=self.mlflow_account, timeout=TIMEOUT_S)
        done.raise_for_status()
        fields: Fields = done.json()
        return fields
