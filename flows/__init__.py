"""Orchestration and record: the only floor that knows Prefect and MLflow.

Both read their settings from the environment when they are imported, so defaults are set here, before anything in this
package can import them: nothing is sent to third parties, no proxy gets passwords of servers on this machine, a dead
tracking server is noticed within seconds, and models are never unpickled. Threads of PyTorch spin for a moment and then
sleep: where they sleep at once, a training step takes a fifth longer, and where they go on spinning, a multiple beside
any other process, as a Prefect server. A setting that the user made stays.
"""

import os

DEFAULTS = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_LOGGING_EXTRA_LOGGERS": "gauntlet",
    "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",  # the sender tries again, later
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "5",
    "GIT_PYTHON_REFRESH": "quiet",
}
SHORT_WAIT = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "1000"}
"""Only together: the count would also shorten the wait of a user who asked for an active one."""

for _name, _value in {**DEFAULTS, **({} if "OMP_WAIT_POLICY" in os.environ else SHORT_WAIT)}.items():
    os.environ.setdefault(_name, _value)
os.environ.setdefault("HOME", os.path.expanduser("~").removeprefix("~") or "/")  # noqa: PTH111 - Prefect needs one
_direct = os.environ.get("no_proxy") or os.environ.get("NO_PROXY", "")
if not {"*", "127.0.0.1"} & {*_direct.split(",")}:
    os.environ["no_proxy"] = os.environ["NO_PROXY"] = f"127.0.0.1,localhost,{_direct}".rstrip(",")
