"""A harmful alarm as an event of Prefect, which the deployment `retrain` is triggered by."""

import logging
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterName, FlowRunFilter, FlowRunFilterState
from prefect.client.schemas.filters import FlowRunFilterStateType as StateTypes
from prefect.client.schemas.objects import StateType
from prefect.events import emit_event

from flows.record.home import Home
from wings.lifecycle.library.monitoring.monitor_result import MonitorResult
from wings.lifecycle.library.promotion.ledger import NAME
from wings.lifecycle.prefect_flows.retrain_record import RetrainRecords

log = logging.getLogger("gauntlet")

EVENT = "gauntlet.alarm.harmful"
SOON = timedelta(minutes=5)
UNDER_WAY = [StateType.SCHEDULED, StateType.PENDING, StateType.RUNNING]
CANCELLED = [StateType.CANCELLING, StateType.CANCELLED]


def emit_alarm(home: Home, source: str, request_log: str, result: MonitorResult) -> None:
    """Tell Prefect of a harmful alarm about a registered model's champion, unless a retraining answers it already.

    A failure is only logged: the next look tries again.
    """
    alarm = alarm_id(result)
    if result.verdict != "harmful" or alarm is None or not NAME.fullmatch(source) or Path(source).exists():
        return
    if done := RetrainRecords(home, source).of_alarm(alarm):
        log.info("%s: retrained for the alarm %s already, %s: %s", source, alarm, done.outcome, done.reason)
        return
    payload = {"name": source, "request_log": str(Path(request_log).resolve()), "alarm": alarm}
    resource = {"prefect.resource.id": f"gauntlet.model.{source}", "prefect.resource.name": source}
    try:
        if _is_answered(source, alarm):
            log.info("%s: a retraining is under way, waits for its worker, or was cancelled by a person", source)
            return
        emit_event(EVENT, resource=resource, payload=payload)
    except Exception as error:
        log.warning("Prefect did not accept the alarm: %s", error)


def _is_answered(name: str, alarm: str) -> bool:
    """Tell whether a retraining of this model is under way or begins soon, or one for this alarm was cancelled.

    It is a flow run of the deployment `retrain`, whose schedule has runs for days to come.
    """
    soon = datetime.now(UTC) + SOON
    with get_client(sync_client=True) as client:
        runs = client.read_flow_runs(
            deployment_filter=DeploymentFilter(name=DeploymentFilterName(any_=["retrain"])),
            flow_run_filter=FlowRunFilter(state=FlowRunFilterState(type=StateTypes(any_=[*UNDER_WAY, *CANCELLED]))),
        )
    due = (run for run in runs if not run.auto_scheduled or (run.expected_start_time or soon) <= soon)
    ours = (run for run in due if run.parameters.get("name") == name)
    return any(run.state_type in UNDER_WAY or run.parameters.get("alarm") == alarm for run in ours)


def alarm_id(result: MonitorResult) -> str | None:
    """Return what tells an alarm from others, the same at every later look: version, label or sample, and history.

    None where predictions are not harmed: failures and latency are not mended by training.
    """
    if result.predictions != "harmful":
        return None
    places = [feature.alarm_at for feature in result.features if feature.alarm_at is not None]
    place = result.risk.alarm_at if result.risk and result.risk.alarm_at is not None else min(places, default=None)
    if place is None:
        return None
    began = re.sub(r"\D", "", (result.first or "")[:19])
    return f"{result.version}-{place}-{began}"
