"""MLflow's server as `gauntlet up` starts it, by MLflow's entry points `mlflow.app`: for the home's account alone.

Without one, any user of this machine could name a folder as the place of an experiment's files, and read the files of
the server's user. MLflow's own accounts would hash the password again for each of a run's hundreds of requests.
"""

import os

from starlette.types import ASGIApp

from flows.servers.guard import WithPassword, guarded
from flows.servers.password import SERVER


def create_app() -> ASGIApp:
    """Return MLflow's application for the account of the environment."""
    from mlflow.server.fastapi_app import app  # takes seconds; the command `mlflow server` imports this module, too

    return guarded(WithPassword(app, os.environ[SERVER]))
