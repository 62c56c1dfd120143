"""Read a stage's facts as plain JSON, as report.json holds them: older reports may lack some, which are left out."""

from pydantic import JsonValue

from gauntlet.core.frozen import JsonObject
from gauntlet.core.run_report import RunReport


def restored(value: JsonValue) -> JsonValue:
    """Return JSON with NaN and infinities as numbers, which a report holds as text."""
    if isinstance(value, dict):
        return {key: restored(item) for key, item in value.items()}
    if isinstance(value, list):
        return [restored(item) for item in value]
    return float(str(value)) if value in ("NaN", "Infinity", "-Infinity") else value


def number(report: RunReport, stage: str, key: str) -> float | None:
    """Return one number from the facts of a main-line stage, or None if there is none."""
    entry = report.stage(stage)
    value = restored(entry.facts.get(key)) if entry is not None else None
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def flatten(values: JsonObject, prefix: str = "") -> list[tuple[str, str]]:
    """Return nested JSON as (dotted key, text) pairs in order; a list of plain values is one text."""
    rows: list[tuple[str, str]] = []
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
            value = {str(index): item for index, item in enumerate(value)}
        if isinstance(value, dict) and value:
            rows += flatten(value, f"{name}.")
        else:
            rows.append((name, _text(value)))
    return rows


def _text(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(_text(item) for item in value) or "none"
    if value is None or value == {}:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)
