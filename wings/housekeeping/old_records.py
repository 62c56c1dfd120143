"""Removed runs leave the home's own MLflow store, with the files that nothing else needs."""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from flows.record.home import Home
from flows.tracking.server import URI_VARIABLE
from gauntlet.core.errors import StageError, one_line

REMOVED = "gauntlet.removed"
"""The tag of a removed run that stays in MLflow until nothing needs its files."""


def remove_records(home: Home, removed: Collection[str], *, dry_run: bool = False) -> int:
    """Remove the records of runs with MLflow's `gc`, which also empties its trash; return the bytes of their files.

    A content is sent once, and later runs link to it. So a run stays whose file or model another record needs.
    """
    if not removed or not home.mlflow_db.exists() or importlib.util.find_spec("mlflow") is None:
        return 0
    from mlflow import MlflowClient

    from flows.tracking.replay import KEY

    client = MlflowClient(home.mlflow_uri)
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    records = {record.info.run_id: record for record in client.search_runs(experiments, max_results=50_000)}
    models = {model.model_id: model for model in client.search_logged_models(experiments, max_results=50_000)}
    run_of = {name: record.data.tags.get(KEY, name).partition("/")[0] for name, record in records.items()}
    folders = {name: _path(record.info.artifact_uri) for name, record in records.items()}
    moved = {name for name in records if not folders[name].is_relative_to(home.root / "mlartifacts")}

    marked = {run_of[name] for name, record in records.items() if REMOVED in record.data.tags}
    old = marked.union(removed) - {run_of[name] for name in moved}
    needs: dict[str, set[str | None]] = {name: _linked(folders[name]) for name in records}
    for name, record in records.items():
        outputs = {output.model_id for output in record.outputs.model_outputs} if record.outputs else set()
        needs[name] |= {models[model].source_run_id for model in outputs & models.keys()}
    registered = {version.run_id for version in client.search_model_versions()}
    gone = _unneeded(old, needs, registered, run_of)
    lost = [name for name in records if run_of[name] in gone]
    lost_models = [model for model in models.values() if model.source_run_id in lost]
    places = [*(folders[name] for name in lost), *(_path(model.artifact_location) for model in lost_models)]
    freed = sum(file.stat().st_size for place in places for file in place.rglob("*") if file.is_file())
    if dry_run:
        return freed
    for name in (name for name in records if run_of[name] in old - gone):
        client.set_tag(name, REMOVED, "true")
    for model in lost_models:
        client.delete_logged_model(model.model_id)
    for name in lost:
        client.delete_run(name)
    if lost:
        _collect(home.mlflow_uri, lost)
    return freed


def _unneeded(
    old: set[str], needs: Mapping[str, set[str | None]], registered: set[str | None], run_of: Mapping[str | None, str]
) -> set[str]:
    """Return the old runs of which neither a registered model nor a record that stays needs a file."""
    gone = old
    while True:
        kept = registered.union(*(needs[name] for name in needs if run_of[name] not in gone))
        if not (stay := gone & {run_of.get(name) for name in kept}):
            return gone
        gone = gone - stay


def _path(uri: str) -> Path:
    return Path(unquote(urlsplit(uri).path))


def _linked(folder: Path) -> set[str | None]:
    """Return the runs whose files the links among a run's files name."""
    links = [json.loads(file.read_bytes())["uri"] for file in folder.rglob("*.link.json")]
    return {uri.split("/")[1] for uri in links if uri.startswith("runs:/")}


def _collect(uri: str, runs: Collection[str]) -> None:
    command = [sys.executable, "-P", "-m", "mlflow", "gc", "--backend-store-uri", uri, "--run-ids", ",".join(runs)]
    done = subprocess.run(command, env=os.environ | {URI_VARIABLE: uri}, capture_output=True, text=True, check=False)
    if done.returncode:
        raise StageError(f"mlflow gc: {one_line(RuntimeError(done.stderr))}")
