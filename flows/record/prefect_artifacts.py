"""A run's report among the artifacts of its Prefect flow run."""

import logging
import math
from collections.abc import Callable
from typing import Any

from prefect import runtime
from prefect.artifacts import create_link_artifact, create_markdown_artifact, create_table_artifact

from gauntlet.core.run_report import CandidateEntry, RunReport
from gauntlet.reporting import timeline
from gauntlet.reporting.text_format import metric_name, size

log = logging.getLogger("gauntlet")

MLFLOW_RUN = "MLflow run"
"""The title of the link to the run's page in MLflow."""


def publish_artifacts(report: RunReport, summary: str) -> None:
    """Show the report, and its `summary` in Markdown, on the page of the flow run; a failure is only logged."""
    show_on_page(lambda: _create_artifacts(report, summary))


def show_on_page(create: Callable[[], object]) -> None:
    """Create artifacts on the page of the flow run, where there is one; a failure is only logged."""
    if runtime.flow_run.id is None:
        return
    try:
        create()
    except Exception as error:
        log.warning("Prefect did not accept the artifacts: %s", error)


def _create_artifacts(report: RunReport, summary: str) -> None:
    verdict = f"{report.winner or report.verdict.capitalize()}: {report.reason}".partition("\n")[0]
    create_markdown_artifact(key="gate-report", markdown=summary, description=verdict)
    if report.candidates:
        rows = [_row(candidate, report) for candidate in report.candidates]
        create_table_artifact(key="candidates", table=rows, description=report.reason)
    url = report.links.get(MLFLOW_RUN)
    if url:
        about = "Metrics, files and models of this run"
        create_link_artifact(key="mlflow-run", link=url, link_text=f"MLflow: {report.run_id}", description=about)
        charts = f"{url.partition('/runs/')[0]}/models?viewMode=CHART&workflowType=machine_learning"
        text, about = "MLflow: the accepted candidates side by side", "Accepted candidates of all runs, as charts"
        create_link_artifact(key="mlflow-candidates", link=charts, link_text=text, description=about)


def _row(candidate: CandidateEntry, report: RunReport) -> dict[str, Any]:
    accuracy, rows, metric = candidate.accuracy, candidate.side_by_side, metric_name(report.metric, short=True)
    speedups = {f"speed-up, batch {row.batch} on {row.target}": timeline.speedup_of(row) for row in rows}
    return {
        "candidate": candidate.name,
        "status": "winner" if candidate.name == report.winner else candidate.standing,
        metric: None if accuracy is None or math.isnan(accuracy) else round(accuracy, 4),
        "size": size(candidate.size_bytes),
        **speedups,
        "reason": candidate.reason,
    }
