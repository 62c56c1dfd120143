"""The names under which MLflow shows a report: few, with units, the same for every model."""

import math
from collections.abc import Mapping

from pydantic import JsonValue

from tasks.run_report import CandidateEntry, RunReport, StageEntry


def metrics_of(entry: StageEntry) -> dict[str, float]:
    """Return the metrics of one stage: each check's value, the stage's seconds, and what is worth a chart."""
    values: dict[str, JsonValue] = {f"gate.{check.name}": check.value for check in entry.checks}
    values[f"seconds.{entry.stage}"] = entry.seconds
    if entry.stage == "evaluate":
        values |= {"quality.top1": entry.facts["accuracy"], "quality.macro_f1": entry.facts["macro_f1"]}
    return finite(values)


def candidate_metrics(report: RunReport, candidate: CandidateEntry) -> dict[str, float]:
    """Return a candidate's headline numbers."""
    name = None if candidate.parent is None else candidate.name
    numerics, accuracy = report.stage("numerics", name), report.stage("accuracy", name)
    errors = [c.value for c in numerics.checks if c.name == "numerics.max_abs_error"] if numerics else []
    share = accuracy.facts["integer_share"] if accuracy else None
    values: dict[str, JsonValue] = {
        "quality.top1": candidate.accuracy,
        "quality.sqnr_db": candidate.sqnr_db,
        "quality.max_abs_error": errors[0] if errors else None,
        "quality.integer_mac_share": share["share"] if isinstance(share, dict) else None,
        "size.mb": None if candidate.size_bytes is None else candidate.size_bytes / 1e6,
    }
    for row in candidate.benchmark:
        place = f"b{row.batch}" if row.target == candidate.benchmark[0].target else f"{row.target}.b{row.batch}"
        values |= {
            f"latency.{place}.p50_ms": row.median_ms,
            f"speedup.{place}": row.speedup,
            f"speedup.{place}.low": row.speedup_low,
            f"speedup.{place}.high": row.speedup_high,
        }
    return finite(values)


def finite(values: Mapping[str, JsonValue]) -> dict[str, float]:
    """Keep the numbers; MLflow has no place for a missing value, and draws infinity as a huge one."""
    return {k: float(v) for k, v in values.items() if isinstance(v, int | float) and math.isfinite(v)}
