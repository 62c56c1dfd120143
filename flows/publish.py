"""Turns a run's record into what people look at: the report's files, MLflow's events, Prefect's artifacts."""

import json
import logging
import math
import os
from typing import TYPE_CHECKING, Any

from prefect import runtime
from prefect.artifacts import create_link_artifact, create_markdown_artifact, create_table_artifact

from configs.schema import REFERENCE
from flows.flips import rows_of
from flows.metrics import candidate_metrics, finite, metrics_of
from flows.tracking import place
from tasks.artifact import write_whole
from tasks.render import html, markdown
from tasks.render.format import size, speedup
from tasks.run_report import CandidateEntry, RunReport, StageEntry

if TYPE_CHECKING:
    from flows.run import Run

log = logging.getLogger("gauntlet")

MLFLOW_UI = "http://127.0.0.1:5000"


def begin(run: "Run") -> None:
    """Open the parent run."""
    uri, experiment = place(run.home, run.config)
    tags = {"stage": "pipeline", "gauntlet.run_id": run.id}
    flow_run = {"id": runtime.flow_run.id, "url": runtime.flow_run.ui_url}
    tags |= {f"prefect.flow_run_{name}": str(value) for name, value in flow_run.items() if value}
    if runtime.deployment.name:
        tags["prefect.deployment"] = str(runtime.deployment.name)
    run.journal.append("start", run="pipeline", name=run.id, pid=os.getpid(), uri=uri, experiment=experiment, tags=tags)
    run.journal.append("params", run="pipeline", params=flat(run.config.model_dump(mode="json")))


def stage(run: "Run", entry: StageEntry) -> None:
    """Tell MLflow the stage's metrics, and the log its verdict.

    A candidate's numbers go to its own run when it is closed, and only those that are worth a chart: all of them would
    hide the few that people compare.
    """
    if entry.candidate is None:
        run.journal.append("metrics", run="pipeline", metrics=metrics_of(entry), step=0)
    if entry.stage == "data":
        for split, artifact in entry.artifacts.items():
            run.journal.append(
                "dataset",
                run="pipeline",
                name=f"{run.config.data.kind}-{split}",
                digest=artifact.sha256[:36],
                source={"sha256": artifact.sha256, "path": artifact.path},
                profile={"images": (entry.facts["images"] or {}).get(split)},  # type: ignore[union-attr]
                context=split,
            )
    if entry.stage == "evaluate" and entry.candidate is None:
        picture = run.home.store.path(entry.artifacts["confusion_matrix"])
        file = str(picture.relative_to(run.home.root))
        run.journal.append("file", run="pipeline", path=file, folder="pictures")
    if entry.stage == "accuracy" and entry.candidate is not None and entry.facts["flips"]:
        flips(run, entry.candidate, entry.facts["flips"])
    failing = {name: artifact for name, artifact in entry.artifacts.items() if name.startswith("failing-")}
    for name, artifact in failing.items():  # what reproduces a pass that broke the model: several files
        for path in sorted(run.home.store.path(artifact).parent.iterdir()):
            file = str(path.relative_to(run.home.root))
            run.journal.append("file", run=entry.candidate or "pipeline", path=file, folder=name)
    run.sender.send()
    if entry.candidate is None or failing:  # a candidate that is rejected says why itself
        log_verdict(entry)


def flips(run: "Run", candidate: str, changed: Any) -> None:
    """Tell MLflow on which images a candidate's answer changed, with the names of the classes where there are any."""
    stages = {entry.stage: entry for entry in run.stages if entry.candidate is None}
    signature: Any = stages["train"].facts["signature"]
    split = str(run.home.store.path(stages["data"].artifacts["test"]).relative_to(run.home.root))
    rows = rows_of(changed, tuple(signature["labels"]))
    run.journal.append("flips", run=candidate, flips=rows, test=split)


def log_verdict(entry: StageEntry) -> None:
    """Write one line for the stage and one for each check that did not pass."""
    failed = [check for check in entry.checks if not check.passed]
    blocked = any(check.blocks for check in failed)
    label = f"{entry.stage} {entry.candidate}" if entry.candidate else entry.stage
    cost = "cached" if entry.cached else f"{entry.seconds:.1f} s"
    log.log(
        logging.ERROR if blocked else logging.INFO,
        "%s %s, %d of %d checks passed (%s)",
        label,
        "FAILED" if blocked else "passed",
        len(entry.checks) - len(failed),
        len(entry.checks),
        cost,
    )
    for check in failed:
        how = "overridden: " + check.override if check.override else check.severity
        log.log(logging.ERROR if check.blocks else logging.WARNING, "  %s (%s)", check, how)


def candidate_opened(run: "Run", candidate: CandidateEntry) -> None:
    """Open the candidate's child run."""
    tags = {"stage": "candidate", "candidate": candidate.name, "parent": candidate.parent or "", "provider": "ort-cpu"}
    run.journal.append("start", run=candidate.name, name=f"{run.config.name}-{candidate.name}", tags=tags)
    params = {"candidate": candidate.name, "parent": candidate.parent or "", "provider": "ort-cpu"}
    run.journal.append("params", run=candidate.name, params=params)


def finish(run: "Run", report: RunReport) -> None:
    """Write the files, close the MLflow runs, and leave the pages in Prefect."""
    write_whole(run.folder / "report.json", report.model_dump_json(indent=1))
    summary = markdown.render_markdown(report)
    write_whole(run.folder / "report.md", summary)
    write_whole(run.folder / "report.html", html.render_html(report))
    for candidate in report.candidates:
        _close_candidate(run, report, candidate)
    write_whole(run.folder / "environment.json", json.dumps(report.environment, indent=1))
    for name in ("report.json", "report.md", "report.html", "environment.json"):
        path = str((run.folder / name).relative_to(run.home.root))
        run.journal.append("file", run="pipeline", path=path, folder="report")
    run.journal.append("metrics", run="pipeline", metrics=headline(report), step=0)
    failed = report.verdict == "failed"
    tags = {
        "gate": "fail" if failed else "pass",
        "gate.reason": report.reason[:5000],
        "stopped_at": report.stopped_at or "",
        "winner": report.winner or "",
        "mlflow.note.content": summary,
    }
    run.journal.append("tags", run="pipeline", tags=tags)
    run.journal.append("end", run="pipeline", status="FAILED" if failed else "FINISHED")
    run.sender.send()
    if runtime.flow_run.id is not None:
        try:
            _prefect_pages(run, report, summary)
        except Exception as error:  # the verdict stands, whatever happens to its pages
            log.warning("Prefect does not take the report's pages: %s", error)


def _close_candidate(run: "Run", report: RunReport, candidate: CandidateEntry) -> None:
    tags = {"gate": "pass" if candidate.status == "accepted" else "fail", "gate.reason": candidate.reason[:5000]}
    tags["winner"] = str(candidate.name == report.winner).lower()
    if candidate.target is not None:
        tags["target"] = candidate.target
    if candidate.session is not None:
        tags["session"] = json.dumps(candidate.session)
    if candidate.artifact is not None:
        run.journal.append(
            "model",
            run=candidate.name,
            name=f"{run.config.name}-{candidate.name}",
            path=str(run.home.store.path(candidate.artifact).relative_to(run.home.root)),
            params={"candidate": candidate.name, "sha256": candidate.artifact.sha256},
            tags=tags,
        )
    run.journal.append("metrics", run=candidate.name, metrics=candidate_metrics(report, candidate), step=0)
    run.journal.append("tags", run=candidate.name, tags=tags)
    run.journal.append("end", run=candidate.name, status="FINISHED")


def headline(report: RunReport) -> dict[str, float]:
    """Return what the parent run shows in a table of runs: the winner's numbers, and how many candidates passed."""
    winner = next((c for c in report.candidates if c.name == report.winner), None)
    best = {f"best.{k}": v for k, v in candidate_metrics(report, winner).items()} if winner else {}
    accepted = [c for c in report.candidates if c.status == "accepted" and c.name != REFERENCE]
    counts = {"candidates_passed": len(accepted), "candidates_tried": max(0, len(report.candidates) - 1)}
    return finite({**best, **counts, "seconds.total": report.seconds})


def flat(values: Any, prefix: str = "") -> dict[str, str]:
    """Return nested values as dotted names."""
    if isinstance(values, dict) and values:
        parts = [flat(v, f"{prefix}.{k}" if prefix else str(k)) for k, v in values.items()]
    elif isinstance(values, list) and any(isinstance(v, dict) for v in values):
        parts = [flat(v, f"{prefix}.{i}") for i, v in enumerate(values)]
    else:
        return {prefix: str(values)}
    return {name: value for part in parts for name, value in part.items()}


def links(run: "Run") -> dict[str, str]:
    """Return the pages of other tools that show this run, as far as they exist."""
    pages = {"Prefect flow run": runtime.flow_run.ui_url, "MLflow run": mlflow_url(run)}
    return {name: str(url) for name, url in pages.items() if url}


def mlflow_url(run: "Run") -> str | None:
    """Return where a browser finds the run in MLflow; for a local store, where `gauntlet ui` will serve it."""
    path = run.sender.run_path()
    if path is None:
        return None
    uri = next(e["uri"] for e in run.journal if e["op"] == "start")
    server = os.environ.get("MLFLOW_UI_URL") or (uri if uri.startswith("http") else MLFLOW_UI)
    return f"{server.rstrip('/')}/#{path}?workflowType=machine_learning"


def _prefect_pages(run: "Run", report: RunReport, summary: str) -> None:
    create_markdown_artifact(key="gate-report", markdown=summary, description=f"Verdict of {report.run_id}")
    if report.candidates:
        create_table_artifact(key="candidates", table=[_row(c) for c in report.candidates], description=report.reason)
    url = mlflow_url(run)
    if url:
        create_link_artifact(key="mlflow-run", link=url, link_text=f"MLflow: {report.run_id}")
        charts = f"{url.partition('/runs/')[0]}/models?viewMode=CHART&workflowType=machine_learning"
        create_link_artifact(key="mlflow-candidates", link=charts, link_text="MLflow: the candidates side by side")


def _row(candidate: CandidateEntry) -> dict[str, Any]:
    accuracy = candidate.accuracy
    speed = {
        f"speed-up, batch {row.batch} on {row.target}": speedup(row.speedup, row.speedup_low, row.speedup_high)
        for row in candidate.benchmark
    }
    return {
        "candidate": candidate.name,
        "status": candidate.status,
        "accuracy": None if accuracy is None or math.isnan(accuracy) else round(accuracy, 4),
        "size": size(candidate.size_bytes),
        **speed,
        "reason": candidate.reason,
    }
