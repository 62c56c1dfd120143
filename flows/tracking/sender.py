"""Sends a run's tracking events to MLflow, each once, whenever the server can be reached.

A `Sender` replays the events in the run's journal and saves its position: during the run, after an outage, and in
`gauntlet sync`. MLflow itself is imported only then: without it, a run is recorded in its journal alone.
"""

import logging
import time
from pathlib import Path
from typing import Any

from flows.record.home import Home
from flows.record.journal import Journal, records_in_mlflow, sent_state
from flows.record.locks import locked
from flows.tracking.server import REQUEST_TIMEOUT_S, recorded_uri, require_reachable
from gauntlet.core.errors import one_line, without_password

log = logging.getLogger("gauntlet")

PARENT = "pipeline"  # the parent run's name in the journal; a child run has its candidate's name
PATIENCE_S = 10.0  # how long a run waits in all for a server that does not respond; `gauntlet sync` sends the rest

State = dict[str, Any]


class Sender:
    """Replays one run's tracking events to the server that the run named."""

    def __init__(self, home: Home, folder: Path) -> None:
        self.home, self.folder = home, folder
        self.journal = Journal(folder / "journal.jsonl")
        self.state_path = folder / "sent.json"
        self.waited_s = 0.0
        self.offline = False

    def send(self) -> bool:
        """Send what is not sent yet; return whether nothing is left. The first failure ends the attempt."""
        if self.waited_s > max(0.0, PATIENCE_S - REQUEST_TIMEOUT_S):
            return False
        with locked(self.folder / "sent.lock"):
            state, events = self._state(), list(self.journal)
            start = next((e for e in events if e["op"] == "start"), None)
            if start is None or state["events"] >= len(events):
                return True
            if not records_in_mlflow(start):
                return False
            began, uri = time.monotonic(), recorded_uri(self.home, start)
            try:
                require_reachable(uri)
                from flows.tracking.replay import replay

                replay(self.home, self.folder, events, state, uri)
            except Exception as error:  # whatever is wrong with the server, the run goes on
                self.waited_s += time.monotonic() - began
                if not self.offline:
                    reason = without_password(one_line(error))
                    where = without_password(uri)
                    log.warning("MLflow at %s did not accept the record (%s). Fix: gauntlet sync", where, reason)
                self.offline = True
                return False
            self.offline = False
            return True

    def run_path(self) -> str | None:
        """Return the path of the run's page in MLflow, once the server knows the run."""
        state = self._state()
        if PARENT not in state["runs"]:
            return None
        return f"/experiments/{state['experiment']}/runs/{state['runs'][PARENT]}"

    def _state(self) -> State:
        return {"events": 0, "runs": {}, "models": {}, "experiment": None, "refused": []} | sent_state(self.folder)
