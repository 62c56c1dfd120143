"""What came of a retraining, in the record of the challenger's run in MLflow."""

from datetime import datetime
from pathlib import Path

from flows.record.home import Home
from flows.record.journal import Journal
from flows.tracking.sender import PARENT, Sender
from wings.lifecycle.library.promotion.retrain_facts import RetrainResult

OUTCOME = "retrain.outcome"


def record_in_mlflow(home: Home, result: RetrainResult, page: Path) -> None:
    """Add tags, metrics and the page to the challenger's run, once; what cannot be sent now, `gauntlet sync` sends."""
    folder = home.runs / str(result.run_id)
    journal = Journal(folder / "journal.jsonl")
    if not any(event["op"] == "tags" and OUTCOME in event["tags"] for event in journal):
        # The time is the retraining's: a point that a kill lets us send twice is the same point.
        time_ms = int(1000 * datetime.fromisoformat(result.started_at).timestamp())
        journal.append("file", run=PARENT, path=str(page.relative_to(home.root)), folder="retraining")
        journal.append("metrics", run=PARENT, metrics=_metrics(result), step=0, time_ms=time_ms)
        tags = {OUTCOME: result.outcome, "retrain.reason": result.reason[:5000], "retrain.id": result.id}
        tags |= {"retrain.champion": result.champion, "retrain.alarm": result.alarm}
        journal.append("tags", run=PARENT, tags=tags)
    Sender(home, folder).send()


def _metrics(result: RetrainResult) -> dict[str, float]:
    """Return the numbers that the decision rests on."""
    counts = {"retrain.trained_samples": float(result.trained), "retrain.held_back_samples": float(result.held_back)}
    if result.replay is None or result.replay.gain is None:
        return counts
    new, old = result.replay.gain, result.replay.change
    return counts | {
        "retrain.new.accuracy": new.after,
        "retrain.new.before": new.before,
        "retrain.new.gain_low": -new.high,
        "retrain.old.drop": old.drop,
        "retrain.old.high": old.high,
    }
