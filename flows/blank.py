"""Empty databases of Prefect and MLflow, made once an installation.

To make their tables takes many times as long as to copy them: without these, the first run in every new home would wait
10 s longer for its Prefect server, on two cores.
"""

import shutil
import sqlite3
import sys
import tempfile
from contextlib import closing
from importlib.metadata import version
from pathlib import Path

FOLDER = Path(sys.prefix) / "share" / "onnx-gauntlet"


def blank(package: str) -> Path:
    """Return where a package's empty database is kept; another version's tables may differ, so it is in the name."""
    return FOLDER / f"{package}-{version(package)}.db"


def begin_with_tables(package: str, database: Path) -> None:
    """Begin a database as a copy of the empty one, where there is neither a database yet nor a reason to wait."""
    if blank(package).exists() and not database.exists():
        database.parent.mkdir(parents=True, exist_ok=True)
        part = database.with_name(f"{database.name}.part")
        shutil.copyfile(blank(package), part)
        part.replace(database)


def make() -> None:
    """Make both, with the packages' own migrations."""
    from mlflow import MlflowClient

    from flows.home import Home
    from flows.servers import free_port, start_prefect, stop_prefect

    FOLDER.mkdir(parents=True, exist_ok=True)
    for package in ("prefect", "mlflow"):
        blank(package).unlink(missing_ok=True)  # or the new ones would be copies of the old ones
    with tempfile.TemporaryDirectory() as folder:
        home = Home(Path(folder))
        home.prefect.mkdir(parents=True)
        start_prefect(home, free_port(), lambda: MlflowClient(home.mlflow_uri).search_experiments())
        stop_prefect(home)
        for package, made in {"prefect": home.prefect / "prefect.db", "mlflow": home.mlflow_db}.items():
            with closing(sqlite3.connect(made)) as connection:  # what is still in its journal is taken along
                connection.execute("VACUUM INTO ?", (str(blank(package)),))


if __name__ == "__main__":
    make()
