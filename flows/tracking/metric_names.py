"""The names under which MLflow shows a report: few, with units, the same for every model."""

import hashlib
import math
import re
from collections.abc import Mapping
from typing import Any

from configs.schema import REFERENCE
from gauntlet.core.facts import Facts
from gauntlet.core.report import Report
from gauntlet.core.run_report import CandidateEntry, RunReport, speed_metrics

Metrics = dict[str, float]
ILLEGAL = re.compile(r"[^\w\-. :/]")
MAX_CHARACTERS = 250
MAX_LABEL_CHARACTERS = 200
MAX_CLASSES = 100
"""MLflow takes 1,000 metrics at once."""


def stage_metrics(report: Report[Any]) -> Metrics:
    """Return the metrics of one stage of the main line: each check's value, its seconds, and what its facts give."""
    return gate_metrics(report) | finite({f"seconds.{report.stage}": report.seconds} | dict(report.facts.metrics()))


def gate_metrics(report: Report[Any]) -> Metrics:
    """Return the value of each check of a stage."""
    return finite({f"gate.{check.name}": check.value for check in report.checks})


def class_metrics(facts: Facts) -> Metrics:
    """Return the scores of each class, where a stage has them; of many classes, those with the least F1."""
    worst = sorted(facts.class_scores(), key=lambda score: score.f1)[:MAX_CLASSES]
    names = ("precision", "recall", "f1", "roc_auc", "average_precision")
    return finite({f"class.{distinct_label(s.label)}.{name}": getattr(s, name, None) for s in worst for name in names})


def candidate_metrics(candidate: CandidateEntry, quality: Metrics, *, confirmed: bool = False) -> Metrics:
    """Return a candidate's numbers, of the race of all candidates or of its confirmation.

    `quality` holds the `quality` of its stages' facts.
    """
    rows = candidate.benchmark if confirmed else candidate.side_by_side
    values = speed_metrics(rows)  # first: MLflow draws the charts in this order
    values |= {"quality.sqnr_db": candidate.sqnr_db}
    values["size.mb"] = None if candidate.size_bytes is None else candidate.size_bytes / 1e6
    return finite(values) | quality


def parent_metrics(report: RunReport, best: Metrics) -> Metrics:
    """Return what a table of runs shows: the winner's `candidate_metrics`, if any, and how many candidates passed."""
    accepted = [c for c in report.candidates if c.status == "accepted" and c.name != REFERENCE]
    tried = [c for c in report.candidates if c.status != "not tried" and c.name != REFERENCE]
    counts = {"candidates_passed": len(accepted), "candidates_tried": len(tried)}
    values = {f"best.{name}": value for name, value in best.items()}
    return finite({**values, **counts, "seconds.total": report.seconds})


def finite(values: Mapping[str, float | None]) -> Metrics:
    """Keep the numbers: MLflow has no place for a missing value, and draws infinity as a huge one."""
    return {k: float(v) for k, v in values.items() if v is not None and math.isfinite(v)}


def distinct_label(label: str) -> str:
    """Return a class name as MLflow allows it in a metric's name: one that had to change ends with its own digest.

    So `C++` and `C#` stay apart, in every run by the same names.
    """
    allowed = legal(label)[:MAX_LABEL_CHARACTERS]
    return allowed if allowed == label else f"{allowed}-{hashlib.sha256(label.encode()).hexdigest()[:8]}"


def legal(name: str) -> str:
    """Return the name as MLflow allows it for metrics, parameters and tags: what it refuses becomes `_`.

    MLflow may use a name as a path, which must not resolve to another one.
    """
    words = [word if word.strip(".") else "_" * len(word) for word in ILLEGAL.sub("_", name).split("/") if word]
    return "/".join(words)[:MAX_CHARACTERS].rstrip("/") or "_"
