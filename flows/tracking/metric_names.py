"""The names under which MLflow shows a report: few, with units, the same for every model."""

import math
import re
from collections.abc import Mapping
from typing import Any

from pydantic import JsonValue

from configs.schema import REFERENCE
from gauntlet.core.report import Report
from gauntlet.core.run_report import BenchmarkRow, CandidateEntry, RunReport
from gauntlet.metrics.confidence_calibration import CalibrationScores
from tasks.accuracy import AccuracyFacts
from tasks.evaluate import EvaluateFacts
from tasks.numerics import NumericsFacts
from tasks.remote import RemoteFacts
from tasks.serve.config import ServeFacts

Metrics = dict[str, float]
ILLEGAL = re.compile(r"[^\w\-. :/]", re.ASCII)
MOST_CHARACTERS = 250
MOST_CLASSES = 100
"""MLflow takes 1,000 metrics at once."""


def stage_metrics(report: Report[Any]) -> Metrics:
    """Return the metrics of one stage: each check's value, the stage's seconds, and what is worth a chart."""
    values: dict[str, JsonValue] = {f"seconds.{report.stage}": report.seconds}
    if isinstance(report.facts, EvaluateFacts):
        values |= quality_metrics(report)
    if isinstance(report.facts, ServeFacts):
        values |= serving_metrics(report.facts)
    return gate_metrics(report) | finite(values)


def serving_metrics(facts: ServeFacts) -> dict[str, JsonValue]:
    """Return the latency of the service, and what it adds to a bare `session.run`."""
    percentiles = {"p50": facts.p50_ms, "p99": facts.p99_ms, "p99.low": facts.p99_low_ms, "p99.high": facts.p99_high_ms}
    values: dict[str, JsonValue] = {f"serving.{name}_ms": value for name, value in percentiles.items()}
    return values | {
        "serving.added_p50_ms": facts.cost.added_p50_ms,
        "serving.added_p99_ms": facts.cost.added_p99_ms,
        "serving.unanswered": facts.refused + facts.failed,
    }


def gate_metrics(report: Report[Any]) -> Metrics:
    """Return the value of each check of a stage."""
    return finite({f"gate.{check.name}": check.value for check in report.checks})


def class_metrics(report: Report[Any]) -> Metrics:
    """Return the scores of each class, where a stage's report has them; of many classes, those with the least F1."""
    if not isinstance(report.facts, AccuracyFacts | EvaluateFacts):
        return {}
    worst = sorted(report.facts.classes, key=lambda score: score.f1)[:MOST_CLASSES]
    names = ("precision", "recall", "f1", "roc_auc", "average_precision")
    return finite({f"class.{s.label}.{name}": getattr(s, name, None) for s in worst for name in names})


def quality_metrics(report: Report[Any]) -> Metrics:
    """Return what a stage's report says of a candidate's quality, beyond what the candidate's entry holds."""
    match report.facts:
        case NumericsFacts():
            errors = [check.value for check in report.checks if check.name == "numerics.max_abs_error"]
            return finite({"quality.max_abs_error": errors[0]}) if errors else {}
        case EvaluateFacts() as facts:
            more = {"quality.macro_f1": facts.macro_f1, **_confidence_scores(facts)}
            return finite({**_scores(facts.scores), **more})
        case AccuracyFacts() as facts:
            scores = _scores(facts.scores)
            if facts.classes:
                scores["quality.macro_f1"] = sum(score.f1 for score in facts.classes) / len(facts.classes)
                scores["quality.worst_recall"] = min(score.recall for score in facts.classes)
            if facts.calibration is not None:
                scores |= _calibration_scores(facts.calibration, calibrated=facts.temperature is not None)
            if facts.integer_share is not None:
                scores["quality.integer_mac_share"] = facts.integer_share.share
            return finite(scores)
    return {}


def _scores(scores: Mapping[str, float]) -> dict[str, JsonValue]:
    return {"quality.top1" if name == "accuracy" else f"quality.{name}": value for name, value in scores.items()}


def _calibration_scores(scores: CalibrationScores, *, calibrated: bool) -> dict[str, JsonValue]:
    prefix = "quality.calibrated" if calibrated else "quality"
    return {f"{prefix}.{name}": getattr(scores, name) for name in ("log_loss", "ece", "brier_score")}


def _confidence_scores(facts: EvaluateFacts) -> dict[str, JsonValue]:
    """Return the calibration, before and after temperature scaling, and the ranking; the model's own come first."""
    values: dict[str, JsonValue] = {}
    if facts.ranking is not None:
        names = ("macro_roc_auc", "macro_average_precision")
        values |= {f"quality.{name}": getattr(facts.ranking, name) for name in names}
    if (found := facts.calibration) is not None:
        values |= _calibration_scores(found.before, calibrated=False) | {"quality.temperature": found.temperature}
        values |= {} if found.after is None else _calibration_scores(found.after, calibrated=True)
    if facts.cross_validation is not None:
        values["quality.cross_validated_accuracy"] = facts.cross_validation.mean
    return values


def candidate_metrics(candidate: CandidateEntry, quality: Metrics) -> Metrics:
    """Return a candidate's headline numbers; `quality` holds the `quality_metrics` of its stages."""
    values = speed_metrics(candidate.benchmark)  # first: MLflow draws the charts in this order
    values |= {"quality.sqnr_db": candidate.sqnr_db}
    values["size.mb"] = None if candidate.size_bytes is None else candidate.size_bytes / 1e6
    return finite(values) | quality


def speed_metrics(rows: tuple[BenchmarkRow, ...], *, elsewhere: bool = False) -> dict[str, JsonValue]:
    """Return latency, speed-up, throughput and memory by batch size.

    Names of rows on another target than the first row's, and of all rows of a race elsewhere, have a prefix.
    """
    values: dict[str, JsonValue] = {}
    for row in rows:
        own = row.target == rows[0].target and not elsewhere
        place = f"b{row.batch}" if own else f"{row.target}.b{row.batch}"
        values |= {f"latency.{place}.p50_ms": row.median_ms, f"speedup.{place}": row.speedup}
        values |= {f"speedup.{place}.low": row.speedup_low, f"speedup.{place}.high": row.speedup_high}
        times = {"mean": row.mean_ms, "p90": row.p90_ms, "p99": row.p99_ms}
        values |= {f"latency.{place}.{name}_ms": time for name, time in times.items()}
        values[f"throughput.{place}.images_per_second"] = row.images_per_second
        values[f"memory.{place}.peak_mb"] = None if row.peak_rss_bytes is None else row.peak_rss_bytes / 1e6
    return values


def remote_metrics(facts: RemoteFacts) -> dict[str, Metrics]:
    """Return each candidate's `speed_metrics` on other machines, whose targets' names tell the work pool."""
    values: dict[str, Metrics] = {}
    for result in (result for race in facts.races for result in race.race.results):
        values.setdefault(result.candidate, {}).update(finite(speed_metrics(result.rows, elsewhere=True)))
    return values


def parent_metrics(report: RunReport, best: Metrics) -> Metrics:
    """Return what a table of runs shows: the winner's `candidate_metrics`, if any, and how many candidates passed."""
    accepted = [c for c in report.candidates if c.status == "accepted" and c.name != REFERENCE]
    counts = {"candidates_passed": len(accepted), "candidates_tried": max(0, len(report.candidates) - 1)}
    values = {f"best.{name}": value for name, value in best.items()}
    return finite({**values, **counts, "seconds.total": report.seconds})


def finite(values: Mapping[str, JsonValue]) -> Metrics:
    """Keep the numbers: MLflow has no place for a missing value, and draws infinity as a huge one."""
    return {k: float(v) for k, v in values.items() if isinstance(v, int | float) and math.isfinite(v)}


def legal(name: str) -> str:
    """Return the name as MLflow allows it for metrics, parameters and tags: what it refuses becomes `_`.

    MLflow may use a name as a path, which must not resolve to another one.
    """
    words = [word if word.strip(".") else "_" * len(word) for word in ILLEGAL.sub("_", name).split("/") if word]
    return "/".join(words)[:MOST_CHARACTERS].rstrip("/") or "_"
