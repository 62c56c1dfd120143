"""Makes the empty databases that new homes copy: `python -m flows.servers.build_templates`, once an installation."""

import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

from mlflow import MlflowClient

from flows.record.home import Home
from flows.servers.database_templates import template_path
from flows.servers.local_servers import start_prefect, stop_prefect
from flows.servers.ports import Port


def build_templates() -> None:
    """Make both, with the packages' own migrations."""
    template_path("prefect").parent.mkdir(parents=True, exist_ok=True)
    for package in ("prefect", "mlflow"):
        template_path(package).unlink(missing_ok=True)  # otherwise the new ones would be copies of the old ones
    with tempfile.TemporaryDirectory() as folder:
        home = Home(Path(folder))
        home.prefect.mkdir(parents=True)
        start_prefect(home, Port.take(), lambda: MlflowClient(home.mlflow_uri).search_experiments())
        stop_prefect(home)
        for package, made in {"prefect": home.prefect / "prefect.db", "mlflow": home.mlflow_db}.items():
            with closing(sqlite3.connect(made)) as connection:  # includes what is still in its write-ahead log
                connection.execute("VACUUM INTO ?", (str(template_path(package)),))


if __name__ == "__main__":
    build_templates()
