from pathlib import Path

import pytest

from flows.record.home import Home
from flows.servers.database_templates import copy_template


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """A home of this test alone, with MLflow's tables, as the home of this process."""
    home = Home(tmp_path / "home")
    copy_template("mlflow", home.mlflow_db)
    monkeypatch.setenv("GAUNTLET_HOME", str(home.root))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return home
