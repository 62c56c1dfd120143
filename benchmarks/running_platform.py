"""A real `gauntlet up --serve` in a folder of its own: started, looked at, its parts killed, its model asked."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import requests
from free_ports import free_port

from flows.record.home import Home
from flows.servers.password import password_file
from wings.lifecycle.library.log_reader import RequestLogReader
from wings.lifecycle.library.monitoring.monitor_result import MonitorResult
from wings.lifecycle.served_champion import logged_requests

GAUNTLET = Path(sys.executable).with_name("gauntlet")
HIDDEN = ("PREFECT_API_URL", "PREFECT_API_AUTH_STRING", "PREFECT_HOME", "MLFLOW_TRACKING_URI")
BATCH = 5
"""Images of a request."""
POLL_S = 0.1
STARTS = 3
"""`gauntlet up` gives up after four minutes, which a busy machine may need; called again, it goes on waiting."""
PATIENCE_S = 1800.0
"""For any one thing to happen: it only ends what would wait forever."""


def until(ready: Callable[[], Any], what: str) -> Any:
    """Wait until something is true, and return it."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if answer := ready():
            return answer
        time.sleep(POLL_S)
    raise TimeoutError(f"not after {PATIENCE_S:g} s: {what}")


class RunningPlatform:
    """The platform of one home, and the model that it serves."""

    def __init__(self, folder: Path, name: str) -> None:
        self.home, self.name = Home(folder / ".gauntlet"), name
        self.log = logged_requests(self.home, name)
        kept = {key: value for key, value in os.environ.items() if key not in HIDDEN}
        self._environment = kept | {"GAUNTLET_HOME": str(self.home.root)}
        self.prefect = self.mlflow = self.serving = ""

    def gauntlet(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command in the platform's home."""
        command = [GAUNTLET, *words]
        return subprocess.run(command, env=self._environment, capture_output=True, text=True, check=False)

    def up(self, *words: str) -> str:
        """Start everything on free ports, and return what was printed."""
        ports = [word for part in ("prefect", "mlflow", "serve") for word in (f"--{part}-port", str(free_port()))]
        for _ in range(STARTS):
            done = self.gauntlet("up", "--serve", self.name, "--label-window-h", "0", *ports, *words)
            if done.returncode == 0:
                break
        else:
            raise RuntimeError(done.stdout + done.stderr)
        self.prefect, self.mlflow, self.serving = (
            self.status()["parts"][part]["address"] for part in ("prefect", "mlflow", "serving")
        )
        return done.stdout

    def down(self) -> None:
        """Stop everything."""
        self.gauntlet("down")

    def status(self) -> dict[str, Any]:
        """Return what `gauntlet status --json` says, with the parts by name."""
        status: dict[str, Any] = json.loads(self.gauntlet("status", "--json").stdout)
        return {**status, "parts": {part["name"]: part for part in status["parts"]}}

    def kill(self, name: str) -> Callable[[], Any]:
        """Kill a part; what is returned waits until it is there again."""
        before = self.status()["parts"][name]
        psutil.Process(before["pid"]).send_signal(signal.SIGKILL)

        def is_back() -> bool:
            now = self.status()["parts"][name]
            return bool(now["ready"] and now["restarts"] > before["restarts"])

        return lambda: until(is_back, f"{name} is restarted")

    def start(self, deployment: str, parameters: dict[str, Any]) -> str:
        """Start a flow run, as a person does from its form; return its id."""
        record = self._api("GET", f"deployments/name/{deployment}")
        return str(self._api("POST", f"deployments/{record['id']}/create_flow_run", {"parameters": parameters})["id"])

    def wait_for_run(self, run: str) -> None:
        """Wait until a flow run has completed."""

        def final_state() -> Any:
            state = self._api("GET", f"flow_runs/{run}")["state"]
            return state if state["type"] in ("COMPLETED", "FAILED", "CRASHED", "CANCELLED") else None

        state = until(final_state, "the flow run ends")
        if state["type"] != "COMPLETED":
            raise RuntimeError(f"the flow run is {state['name']}: {state['message']}")

    def version(self) -> str:
        """Return the version that is served; empty where there is none."""
        try:
            response = requests.get(f"{self.serving}/v2/models/{self.name}", timeout=60)
        except requests.ConnectionError:
            return ""
        return str(response.json()["versions"][0]) if response.ok else ""

    def ask(self, request_id: str, images: np.ndarray) -> list[int]:
        """Return the predicted classes; a request that the server does not answer is sent again with the same id."""
        tensor = {"name": "input", "shape": list(images.shape), "datatype": "FP32", "data": images.ravel().tolist()}
        output = self._post("infer", {"inputs": [tensor]}, request_id).json()["outputs"][0]
        return list(np.reshape(output["data"], output["shape"]).argmax(axis=1))

    def tell(self, request_ids: Sequence[str], labels: np.ndarray) -> None:
        """Send the right classes of requests, BATCH labels for each."""
        rows = zip(request_ids, labels.reshape(-1, BATCH).tolist(), strict=True)
        self._post("feedback", {"feedback": [{"request_id": answered, "labels": row} for answered, row in rows]})

    def logged(self, version: str) -> Counter[str]:
        """Return how often each request to a version is in the log."""
        return Counter(request.request_id for request in RequestLogReader(self.log).requests(version))

    def labeled(self) -> Counter[str]:
        """Return how often the log has labels of each request."""
        return Counter(feedback.request_id for feedback in RequestLogReader(self.log).feedback())

    def look(self, version: str) -> MonitorResult | None:
        """Return what the last look at a version found."""
        path = self.log / "monitors" / f"{self.name}-{version}" / "monitor.json"
        return MonitorResult.model_validate_json(path.read_bytes()) if path.exists() else None

    def _post(self, verb: str, body: dict[str, Any], request_id: str = "feedback") -> requests.Response:
        def answer() -> requests.Response | None:
            try:
                sent = requests.post(
                    f"{self.serving}/v2/models/{self.name}/{verb}",
                    json=body,
                    headers={"x-request-id": request_id},
                    timeout=60,
                )
            except requests.ConnectionError:
                return None
            return sent if sent.ok else None

        return until(answer, f"{verb} is answered")  # type: ignore[no-any-return]

    def _api(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        name, secret = password_file(self.home).read_text().strip().split(":")

        def answer() -> requests.Response | None:
            try:
                address = f"{self.prefect}/api/{path}"
                return requests.request(method, address, json=body, timeout=60, auth=(name, secret))
            except requests.ConnectionError:
                return None

        response = until(answer, f"Prefect answers {path}")
        response.raise_for_status()
        return response.json()
