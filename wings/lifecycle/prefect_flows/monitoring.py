"""Monitoring as a Prefect flow, so that it can be scheduled and can start others."""

import logging
from pathlib import Path

from prefect import flow
from prefect.artifacts import create_markdown_artifact
from prefect.client.schemas.objects import State
from prefect.states import Completed

from flows.failure import fails_with_its_reason
from flows.record.home import Home
from flows.record.prefect_artifacts import show_on_page
from gauntlet.core.errors import GateFailed
from gauntlet.reporting.markdown_report import escape
from gauntlet.reporting.text_format import number
from gauntlet.request_log.log_format import log_files
from wings.lifecycle.library.monitoring.monitor import PAGE
from wings.lifecycle.library.monitoring.monitor import monitor as look
from wings.lifecycle.library.monitoring.monitor_result import FULL, MonitorLimits, MonitorResult
from wings.lifecycle.library.promotion.ledger import checked_name
from wings.lifecycle.prefect_flows.alarm_event import emit_alarm
from wings.lifecycle.registered_model import named_bundle
from wings.lifecycle.registry.bundle_cache import registry_of
from wings.lifecycle.registry.watch import watch

log = logging.getLogger("gauntlet")


@flow(name="monitor", flow_run_name="{source}", persist_result=False, log_prints=False)
@fails_with_its_reason
def monitor(
    source: str,
    request_log: str,
    limits: MonitorLimits = MonitorLimits(),  # noqa: B008 - immutable; Prefect's form shows its fields
    out: str | None = None,
    restart: bool = False,
    roll_back: bool = False,
    allow_empty: bool = False,
) -> State[str]:
    """Judge a shipped model by its request log, as `gauntlet monitor` does; return the verdict.

    An alarm that is not proven harmless raises `GateFailed`, and so does a rollback. A harmful one starts the
    retraining of a registered model, once.

    Args:
        source: name of a registered model, whose champion is judged, or path of a bundle.
        request_log: the folder that `gauntlet serve --request-log` writes.
        limits: when an alarm is raised.
        out: folder for the results; by default in the log's.
        restart: forget the history and begin with what is logged from now on.
        roll_back: roll a champion back once it is proven worse than the one before it.
        allow_empty: where there is no champion or no request yet, end with that as the verdict instead of failing.
    """
    log.setLevel(logging.INFO)
    home, folder, done = Home.find(), Path(out) if out else None, ""
    if allow_empty and (nothing := _nothing_yet(home, source, Path(request_log))):
        return Completed(message=nothing, data=nothing)
    if roll_back:
        watched = watch(home, source, Path(request_log), limits, out=folder, restart=restart)
        result, written = watched.result, watched.folder
        if rollback := watched.rollback:
            done = f"rolled back to version {rollback.version}: "
    else:
        result, written = look(named_bundle(home, source), Path(request_log), limits, out=folder, restart=restart)
    _publish(result, written / PAGE, done)
    if not done:  # otherwise the model that did harm is not the champion any more
        emit_alarm(home, source, request_log, result)
    if result.is_alarm:
        raise GateFailed(f"{result.name}: {done}{result.verdict}: {result.reason}")
    return Completed(message=f"{result.verdict}: {result.reason}", data=result.verdict)


def _nothing_yet(home: Home, source: str, request_log: Path) -> str:
    """Return why there is nothing to judge yet, or nothing."""
    if not Path(source).exists() and "champion" not in registry_of(home, checked_name(source)).state():
        return f"{source}: there is no champion yet"
    return "" if log_files(request_log) else f"{source}: no request is logged yet"


def _publish(result: MonitorResult, page: Path, done: str) -> None:
    """Show the result on the page of the flow run."""
    reason = escape(f"{done}{result.reason}")
    head = f"**{result.verdict.capitalize()}**: {reason}\n\n{result.samples} samples. Page: `{page}`\n"
    head += f"\n{FULL}\n" if result.is_full else ""
    rows = [
        f"| {escape(feature.name)} | {feature.evidence:.1f} | {feature.threshold:.1f} | {number(feature.alarm_at)} |"
        for feature in result.features
        if feature.samples
    ]
    table = ["| feature | evidence, decimal log | needed | alarm at sample |", "|---|---:|---:|---:|", *rows]
    text = "\n".join([head, *table])
    show_on_page(lambda: create_markdown_artifact(key="monitor", markdown=text, description="What changed"))
