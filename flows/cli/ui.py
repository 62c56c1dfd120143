"""`gauntlet ui`: the Prefect and MLflow pages on the loopback, until Ctrl-C."""

import argparse
import os
import signal
import threading

from rich.console import Console

from flows.record.home import Home
from flows.servers.local_servers import HOST, free_port, prefect_server, start_mlflow, stop
from gauntlet.core.errors import without_password

CUSTOM_MODELS = "workflowType=machine_learning"  # MLflow opens its view for language models otherwise


def serve_ui(options: argparse.Namespace) -> int:
    """Start what does not run yet, print the addresses, wait for Ctrl-C or SIGTERM, and stop what was started."""
    console, home = Console(), Home.find()
    done = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: done.set())
    console.print("Starting the pages ...", highlight=False)
    with prefect_server(home, options.prefect_port) as api:
        tracking = os.environ.get("MLFLOW_TRACKING_URI", "")
        mlflow = None
        if not tracking.startswith("http"):
            port = free_port(options.mlflow_port)
            mlflow = start_mlflow(home, port)
            tracking = f"http://{HOST}:{port}"
        try:
            console.print(f"Prefect  {api.removesuffix('/api')}/runs", highlight=False, soft_wrap=True)
            tracking = without_password(tracking)
            console.print(f"MLflow   {tracking}/#/experiments?{CUSTOM_MODELS}", highlight=False, soft_wrap=True)
            console.print("Ctrl-C stops both.", highlight=False)
            done.wait()
        finally:
            if mlflow is not None:
                stop(mlflow)
    return 0
