"""Both pages for people, on the loopback, until Ctrl-C."""

import os
import signal
import threading

import psutil
from rich.console import Console

from flows.home import Home
from flows.servers import HOST, free_port, port_is_free, prefect_api, start_mlflow, stop


def serve(home: Home, prefect_port: int, mlflow_port: int) -> None:
    """Start what does not run yet, say where it is, wait for Ctrl-C or SIGTERM, and stop what was started."""
    console = Console()
    done = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: done.set())
    console.print("Starting the pages ...", highlight=False)
    with prefect_api(home, prefect_port) as api:
        tracking = os.environ.get("MLFLOW_TRACKING_URI", "")
        mlflow = None
        if not tracking.startswith("http"):
            port = mlflow_port if port_is_free(mlflow_port) else free_port()
            mlflow = start_mlflow(home, port)
            tracking = f"http://{HOST}:{port}"
        try:
            console.print(f"Prefect  {api.removesuffix('/api')}/runs", highlight=False, soft_wrap=True)
            console.print(
                f"MLflow   {tracking}/#/experiments?workflowType=machine_learning", highlight=False, soft_wrap=True
            )
            console.print("Ctrl-C stops both.", highlight=False)
            done.wait()
        finally:
            if mlflow is not None:
                stop(psutil.Process(mlflow.pid))
