"""The names under which MLflow shows a report: few, with units, the same for every model."""

import math

from pydantic import JsonValue

from tasks.run_report import CandidateEntry, StageEntry


def metrics_of(entry: StageEntry) -> dict[str, float]:
    """Return the metrics of one stage: each check's value, the stage's seconds, and what is worth a chart."""
    values: dict[str, JsonValue] = {f"gate.{check.name}": check.value for check in entry.checks}
    values[f"seconds.{entry.stage}"] = entry.seconds
    facts = entry.facts
    match entry.stage:
        case "evaluate":
            values |= {"quality.top1": facts["accuracy"], "quality.macro_f1": facts["macro_f1"]}
        case "accuracy":
            values |= {"quality.top1": facts["accuracy"], "quality.sqnr_db": facts["sqnr_db"]}
            share = facts["integer_share"]
            values["quality.integer_mac_share"] = share["share"] if isinstance(share, dict) else None
    return finite(values)


def candidate_metrics(candidate: CandidateEntry) -> dict[str, float]:
    """Return a candidate's headline numbers."""
    values: dict[str, JsonValue] = {
        "quality.top1": candidate.accuracy,
        "quality.sqnr_db": candidate.sqnr_db,
        "size.mb": None if candidate.size_bytes is None else candidate.size_bytes / 1e6,
    }
    for row in candidate.benchmark:
        values |= {
            f"latency.b{row.batch}.p50_ms": row.median_ms,
            f"speedup.b{row.batch}": row.speedup,
            f"speedup.b{row.batch}.low": row.speedup_low,
            f"speedup.b{row.batch}.high": row.speedup_high,
        }
    return finite(values)


def finite(values: dict[str, JsonValue]) -> dict[str, float]:
    """Keep the numbers; MLflow has no place for a missing value, and draws infinity as a huge one."""
    return {k: float(v) for k, v in values.items() if isinstance(v, int | float) and math.isfinite(v)}
