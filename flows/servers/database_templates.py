"""Empty databases of Prefect and MLflow, made by `flows.servers.build_templates`, which new homes copy.

Without them, the first run in a new home waits 10 s longer for its Prefect server, on two cores.
"""

import shutil
import sys
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
