"""Retraining as a Prefect flow: labeled requests, a run of the pipeline, and a promotion if the new model is better.

A harmful alarm starts it once, through the trigger of the deployment in `prefect.yaml`. So can a person or a schedule.
"""

import logging
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import httpx
from prefect import flow

from configs.schema import PipelineConfig
from flows.failure import fails_with_its_reason
from flows.local_run import find_own_run
from flows.pipeline import pipeline
from flows.record.home import Home
from gauntlet.bundle.bundle import Bundle
from gauntlet.core.errors import GateFailed, without_password
from gauntlet.reporting.markdown_report import escape
from gauntlet.request_log.log_format import VERSION_DIGITS
from wings.lifecycle.library.log_reader import RequestLogReader
from wings.lifecycle.library.monitoring.labeled_requests import LabeledRequests, read_labeled_requests
from wings.lifecycle.library.promotion.ledger import Entry, checked_name
from wings.lifecycle.library.promotion.replay_facts import ReplayLimits
from wings.lifecycle.library.promotion.retrain_facts import RetrainLimits, RetrainResult, RetrainTask, require_enough
from wings.lifecycle.prefect_flows.promotion import promote, show_decision
from wings.lifecycle.prefect_flows.retrain_record import (
    NothingToDoError,
    RetrainRecord,
    RetrainRecords,
    record_in_mlflow,
    retrain_records,
)
from wings.lifecycle.registry.bundle_cache import ResolvedBundle, registry_of, resolve
from wings.lifecycle.registry.champion_config import champion_config
from wings.lifecycle.registry.model_registry import RegistryError
from wings.lifecycle.registry.transaction import transaction

log = logging.getLogger("gauntlet")


@dataclass(frozen=True)
class RetrainRequest:
    """What is asked for."""

    name: str
    request_log: Path
    alarm: str
    limits: RetrainLimits
    replay: ReplayLimits
    why: str
    fresh: bool


@flow(name="retrain", flow_run_name="{name}", persist_result=False, log_prints=False)
@fails_with_its_reason
def retrain(
    name: str,
    request_log: str,
    alarm: str = "",
    limits: RetrainLimits = RetrainLimits(),  # noqa: B008 - immutable; Prefect's form shows its fields
    replay: ReplayLimits = ReplayLimits(),  # noqa: B008
    why: str = "",
    *,
    fresh: bool = False,
) -> str:
    """Train a champion again with labeled requests, and promote what comes of it if it is better; return what was done.

    The champion's configuration runs through the whole pipeline with the samples as `extra_samples`. The challenger
    must be proven better on samples that were held back, and not to lose on the run's own test samples. A retraining
    that was killed is continued. One that was done for the same alarm, or with the same requests, is not repeated.

    Args:
        name: of the registered model.
        request_log: the folder that `gauntlet serve --request-log --log-inputs all` writes.
        alarm: what started it; set by the deployment's trigger.
        limits: what it needs, and how the data is divided.
        replay: what the challenger may lose against the champion.
        why: the reason, for the ledger; needed where the run overrides a gate.
        fresh: repeat everything.

    Raises:
        ConfigError: when the champion cannot be trained again, or there are too few labeled requests.
        GateFailed: when the champion is kept; the ledger says why, too.
        StageError: when something broke.
    """
    log.setLevel(logging.INFO)
    home, request = Home.find(), RetrainRequest(name, Path(request_log), alarm, limits, replay, why, fresh)
    try:
        with home.kept(), retrain_records(home, checked_name(name)) as records:  # its run stays until it is judged
            record = _record(home, records, request)
            result = _finish(home, record, fresh=fresh)
    except NothingToDoError as reason:
        log.info("%s", reason)
        return str(reason)
    _publish(result, record.page)
    if result.outcome == "kept":
        raise GateFailed(f"{name}: the champion is kept: {result.reason}\nPage: {record.page}")
    return f"{name}: {result.reason}. Page: {record.page}"


def _record(home: Home, records: RetrainRecords, request: RetrainRequest) -> RetrainRecord:
    """Return the retraining that was killed, or begin one."""
    name, alarm = request.name, request.alarm
    if alarm and (done := records.of_alarm(alarm)):
        raise NothingToDoError(f"{name}: retrained for the alarm {alarm} already, {done.outcome}: {done.reason}")
    if record := records.unfinished():
        log.info("%s: continues the retraining %s", name, record.task.id)
        return record
    champion = resolve(home, f"models:/{name}@champion")
    if alarm and not champion.digest.startswith(alarm.partition("-")[0]):
        raise NothingToDoError(f"{name}: the alarm {alarm} is about another version than today's champion")
    config, samples = champion_config(champion), _samples(champion, request)
    record = records.add(samples, champion.digest[:VERSION_DIGITS])
    done = record.result
    if not request.fresh and done and done.outcome != "broke" and done.limits == request.replay:
        raise NothingToDoError(
            f"{name}: retrained with the same requests already, {done.outcome}: {done.reason}. "
            "Fix: send more labels, or repeat it with --fresh"
        )
    task = RetrainTask(
        id=record.folder.name,
        name=name,
        champion=champion.digest,
        alarm=alarm or (done.alarm if done else ""),
        why=request.why,
        started_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
        trained=int((~samples.held_back).sum()),
        held_back=int(samples.held_back.sum()),
        limits=request.replay,
        config=_challenger_config(home, champion, config, record).model_dump(mode="json"),
    )
    record.begin(task)
    return record


def _samples(champion: ResolvedBundle, request: RetrainRequest) -> LabeledRequests:
    """Return the labeled requests to the champion; `ConfigError` when there are too few."""
    reader, signature = RequestLogReader(request.request_log), Bundle.open(champion.folder).contract.signature
    reader.require()
    samples = read_labeled_requests(reader, champion.digest[:VERSION_DIGITS], signature, request.limits.held_back)
    aside = int(samples.held_back.sum())
    sides = (len(samples.labels) - aside, aside)
    require_enough(request.name, samples.labeled, samples.usable, sides, request.limits, samples.copies)
    return samples


def _challenger_config(
    home: Home, champion: ResolvedBundle, config: PipelineConfig, record: RetrainRecord
) -> PipelineConfig:
    """Return the champion's configuration with further samples, recorded where the model is registered."""
    uri = without_password(registry_of(home, champion.name).uri)
    return config.replace(
        extra_samples=(*config.extra_samples, record.train.resolve()), tracking=config.tracking.replace(uri=uri)
    )


def _finish(home: Home, record: RetrainRecord, *, fresh: bool) -> RetrainResult:
    """Do what is left: the run, the promotion, and the record of both."""
    task = record.task
    try:
        if task.run_id is None:
            record.require_intact()
            task = task.replace(run_id=_run(home, PipelineConfig.model_validate(task.config), fresh=fresh))
            record.save(task)
        result = _judged(task, _decision(home, task) or _promote(home, task, record))
    except (RegistryError, httpx.TransportError):  # MLflow's server, or Prefect's, is away: the next start continues
        raise
    except Exception as error:  # a signal is none of these: then it is continued
        result = _result(task, outcome="broke", reason=f"{type(error).__name__}: {error}")
        record.draw(result)
        record.close(result)
        raise
    record.draw(result)
    record_in_mlflow(home, result, record.page)
    record.close(result)
    return result


def _run(home: Home, config: PipelineConfig, *, fresh: bool) -> str:
    """Run the pipeline and return the run's id, also where a gate has failed: the promotion is refused then."""
    before = set(home.run_folders())
    try:
        return pipeline(config, fresh=fresh)
    except GateFailed:
        folder = find_own_run(home, before)
        if folder is None:
            raise
        return folder.name


def _promote(home: Home, task: RetrainTask, record: RetrainRecord) -> Entry:
    """Promote the challenger if its gates allow it; return what the ledger says of it."""
    refused: GateFailed | None = None
    record.require_intact()
    try:
        promote(
            str(task.run_id),
            name=task.name,
            why=task.why,
            limits=task.limits,
            must_win_on=str(record.test),
            cause=task.cause,
            retraining=task.id,
        )
    except GateFailed as error:
        refused = error
    entry = _decision(home, task)
    if entry is None:  # the ledger itself is damaged
        raise refused or RuntimeError(f"{task.name}: the ledger has no entry of the retraining {task.id}")
    return entry


def _decision(home: Home, task: RetrainTask) -> Entry | None:
    """Return what the ledger says of the challenger; what was interrupted is finished, or undone, before."""
    with transaction(home, registry_of(home, task.name)) as held:
        entries = held.ledger.entries()
    ours = [entry for entry in entries if entry.retraining == task.id and entry.run_id == task.run_id]
    undone = {entry.intent for entry in entries if entry.op == "undo"}
    return next((entry for entry in reversed(ours) if entry.number not in undone), None)


def _judged(task: RetrainTask, entry: Entry) -> RetrainResult:
    """Return the result that follows from the ledger's entry."""
    gain = next((check.detail for check in entry.checks if check.name == "promote.min_gain"), "")
    if entry.op == "promote":
        outcome, reason = "promoted", f"run {task.run_id} is the champion now: {gain}"
    else:
        outcome, reason = "kept", "\n".join(str(check) for check in entry.checks if check.blocks)
    return _result(
        task, outcome=outcome, reason=reason, challenger=entry.digest, checks=entry.checks, replay=entry.replay
    )


def _result(task: RetrainTask, **fields: object) -> RetrainResult:
    seconds = (datetime.now(UTC) - datetime.fromisoformat(task.started_at)).total_seconds()
    return RetrainResult.model_validate({**task.model_dump(), "seconds": seconds, **fields})


def _publish(result: RetrainResult, page: Path) -> None:
    """Show the result on the page of the flow run."""
    text = f"**{result.outcome.capitalize()}**: {escape(result.reason)}\n\nPage: `{page}`"
    show_decision("retraining", text, result.checks)
