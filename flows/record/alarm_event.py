"""A harmful alarm as an event of Prefect, which the deployment `retrain` is triggered by."""

import logging
import re
from pathlib import Path

from prefect.events import emit_event

from gauntlet.monitoring.result import MonitorResult
from gauntlet.promotion.ledger import NAME

log = logging.getLogger("gauntlet")

EVENT = "gauntlet.alarm.harmful"


def emit_alarm(source: str, request_log: str, result: MonitorResult) -> None:
    """Tell Prefect of a harmful alarm about a registered model's champion; a failure is only logged."""
    alarm = alarm_id(result)
    if result.verdict != "harmful" or alarm is None or not NAME.fullmatch(source) or Path(source).exists():
        return
    payload = {"name": source, "request_log": str(Path(request_log).resolve()), "alarm": alarm}
    resource = {"prefect.resource.id": f"gauntlet.model.{source}", "prefect.resource.name": source}
    try:
        emit_event(EVENT, resource=resource, payload=payload)
    except Exception as error:
        log.warning("Prefect did not accept the alarm: %s", error)


def alarm_id(result: MonitorResult) -> str | None:
    """Return what tells an alarm from others, the same at every later look: version, label or sample, and history.

    None where neither inputs nor predictions changed: failures and latency are not mended by training.
    """
    places = [one.alarm_at for one in result.features if one.alarm_at is not None]
    place = result.risk.alarm_at if result.risk and result.risk.alarm_at is not None else min(places, default=None)
    if place is None:
        return None
    began = re.sub(r"\D", "", (result.first or "")[:19])
    return f"{result.version}-{place}-{began}"
