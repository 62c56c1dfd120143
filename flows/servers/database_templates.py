"""Empty databases of Prefect and MLflow, which new homes copy; `python -m` makes them, once an installation.

Without them, the first run in a new home waits 10 s longer for its Prefect server, on two cores.
"""

import shutil
import sqlite3
import sys
import tempfile
from contextlib import closing
from importlib.metadata import version
from pathlib import Path

FOLDER = Path(sys.prefix) / "share" / "onnx-gauntlet"


def template_path(package: str) -> Path:
    """Return where a package's empty database is kept; the tables of another version may differ."""
    return FOLDER / f"{package}-{version(package)}.db"


def copy_template(package: str, database: Path) -> None:
    """Start a database as a copy of the empty one, unless the database exists or the installation made no empty one."""
    if template_path(package).exists() and not database.exists():
        database.parent.mkdir(parents=True, exist_ok=True)
        part = database.with_name(f"{database.name}.part")
        shutil.copyfile(template_path(package), part)
        part.replace(database)


def build_templates() -> None:
    """Make both, with the packages' own migrations."""
    from mlflow import MlflowClient

    from flows.record.home import Home
    from flows.servers.local_servers import start_prefect, stop_prefect
    from flows.servers.ports import Port

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
