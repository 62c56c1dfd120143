"""What a run's report is made of, on disk as soon as it is measured, so that a killed run gets its report later."""

import json
import pkgutil
from pathlib import Path

from configs.schema import PipelineConfig
from flows.record.home import Home
from flows.record.journal import SAVED, Journal
from flows.record.run import Run
from gauntlet.core.facts import Facts
from gauntlet.core.run_report import CandidateEntry, StageEntry


def restore_run(home: Home, folder: Path) -> Run | None:
    """Return a run as it stood when it was killed; None where it saved nothing.

    Raises:
        ValueError: when another release saved it, whose fields differ.
    """
    events = list(Journal(folder / SAVED))
    if not events or events[0]["op"] != "opened":
        return None
    run = Run(folder.name, home, PipelineConfig.model_validate(events[0]["config"]))
    run.started_at, run.environment = events[0]["started_at"], events[0]["environment"]
    for event in events:
        match event["op"]:
            case "stage":
                entry = StageEntry.model_validate(event["entry"])
                run.take_stage(tuple(event["place"]), _with_facts(entry, event["facts"]))
                run.metric, run.winner, run.reason = event["metric"], event["winner"], event["reason"]
            case "candidate":
                run.take_candidate(tuple(event["place"]), CandidateEntry.model_validate(event["entry"]))
    run.at_stage = _stopped_at(folder)
    run.ended_after_s = (_last_ms(folder) - events[0]["time_ms"]) / 1000
    return run


def _with_facts(entry: StageEntry, name: str) -> StageEntry:
    """Return the entry with its facts as an object of the class of that name; as it is where the class is gone."""
    try:
        kind: type[Facts] = pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        return entry
    return entry.with_facts(kind.model_validate_json(json.dumps(entry.facts)))


def _stopped_at(folder: Path) -> str | None:
    """Return the stage that was at work, or else the last one that was."""
    events = list(Journal(folder / "journal.jsonl"))
    finished = {event["key"] for event in events if event["op"] == "work_finished"}
    started = [event for event in events if event["op"] == "work_started"]
    at_work = [event for event in started if event["key"] not in finished]
    return str((at_work or started)[-1]["stage"]) if started else None


def _last_ms(folder: Path) -> int:
    return max(int(event["time_ms"]) for name in (SAVED, "journal.jsonl") for event in Journal(folder / name))
