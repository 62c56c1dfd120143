"""The copied databases are what Prefect and MLflow would have made themselves, and both work with them."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from mlflow import MlflowClient

from flows.record.home import Home
from flows.servers import database_templates
from flows.servers.database_templates import build_templates, copy_template, template_path
from flows.servers.local_servers import recorded_process, start_prefect, stop_prefect
from flows.servers.ports import Port


def tables(path: Path) -> set[tuple[str, str]]:
    with closing(sqlite3.connect(path)) as connection:
        return set(connection.execute("SELECT name, sql FROM sqlite_master"))


@pytest.mark.nightly  # only another version of a package changes them
def test_databases_begin_as_copies_of_what_the_packages_make_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_templates, "FOLDER", tmp_path / "made")
    build_templates()
    build_templates()  # again: nothing is copied from the first ones
    home = Home(tmp_path / "home")
    home.prefect.mkdir(parents=True)
    start_prefect(home, Port.take(), int)
    assert recorded_process(home) is not None
    stop_prefect(home)
    assert tables(home.prefect / "prefect.db") == tables(template_path("prefect"))
    assert {"flow_run", "task_run"} <= {name for name, _ in tables(template_path("prefect"))}

    copy_template("mlflow", home.mlflow_db)
    assert home.mlflow_db.read_bytes() == template_path("mlflow").read_bytes()
    experiment = MlflowClient(home.mlflow_uri).create_experiment("mine")
    copy_template("mlflow", home.mlflow_db)  # there is one now
    assert MlflowClient(home.mlflow_uri).get_experiment(experiment).name == "mine"


def test_database_is_made_by_its_package_when_no_empty_one_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_templates, "FOLDER", tmp_path / "nothing")
    copy_template("mlflow", tmp_path / "mlflow.db")
    assert not (tmp_path / "mlflow.db").exists()
