"""`gauntlet bench` in MLflow: one parent run, and a child run for each pair of a model and a target."""

import os
import tempfile
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag

from flows.record.environment import environment
from flows.record.home import Home
from flows.tracking.metric_names import finite
from flows.tracking.server import URI_VARIABLE, experiment_id, require_reachable, tracking_client
from gauntlet.core.errors import StageError, one_line, without_password
from gauntlet.core.run_report import speed_metrics
from gauntlet.race.target_examiner import ModelOnTarget
from wings.comparison.library.target_comparison import BenchResult


def record_bench(comparison: BenchResult, experiment: str, plot: Path | None) -> str:
    """Record the comparison; return the server, the experiment and the run; raise `StageError` where that fails."""
    home = Home.find()
    uri = os.environ.get(URI_VARIABLE) or home.mlflow_uri
    try:
        require_reachable(uri)
        client = tracking_client(home, uri)
        place = experiment_id(home, client, experiment)
        run = client.create_run(place, tags={"stage": "bench"}, run_name="bench").info.run_id
        settings = {name: getattr(comparison, name) for name in ("reference", "threads", "rounds", "inputs")}
        params = [Param(name, str(value)[:500]) for name, value in (settings | environment()).items()]
        client.log_batch(run, params=params)
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder) / "bench.json"
            report.write_text(comparison.model_dump_json(indent=1), encoding="utf-8")
            client.log_artifact(run, str(report))
        if plot is not None:
            client.log_artifact(run, str(plot))
        for pair in comparison.pairs:
            _child(client, place, run, pair)
        client.set_terminated(run, "FAILED" if comparison.failed else "FINISHED")
    except Exception as error:  # whatever is wrong with the server
        message = without_password(f"--mlflow: {uri} did not accept the record ({one_line(error)})")
        raise StageError(message) from error
    return f"{without_password(uri)}, experiment {experiment}, run {run}"


def _child(client: MlflowClient, place: str, parent: str, pair: ModelOnTarget) -> None:
    tags = {"mlflow.parentRunId": parent, "stage": "pair", "status": pair.status, "reason": pair.reason[:500]}
    run = client.create_run(place, tags=tags, run_name=pair.name).info.run_id
    values = {"load_ms": pair.load_ms, "first_call_ms": pair.first_call_ms} | speed_metrics(pair.rows)
    if pair.validation is not None:
        values |= {"quality.sqnr_db": pair.validation.quality_db, "placement.macs_share": pair.validation.macs_share}
    metrics = [Metric(name, value, 0, 0) for name, value in finite(values).items()]
    params = [Param("model", pair.candidate), Param("target", pair.target)]
    params += [Param("precision", pair.validation.effective)] if pair.validation else []
    client.log_batch(run, metrics, params, [RunTag("target", pair.target)])
    client.set_terminated(run, "FAILED" if pair.status == "failed" else "FINISHED")
