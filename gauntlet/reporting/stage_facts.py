"""A stage's facts as the page reads them: plain JSON, as report.json holds it.

Nothing is declared twice here: who shows a fact reads it by its name, and `html` leaves out what an older report lacks.
"""

from pydantic import JsonValue

from gauntlet.core.frozen import JsonObject
from gauntlet.core.run_report import RunReport

NOT_FINITE = ("NaN", "Infinity", "-Infinity")


def restored(value: JsonValue) -> JsonValue:
    """Return JSON with its numbers that JSON has no way to write, which a report holds as text."""
    if isinstance(value, dict):
        return {key: restored(item) for key, item in value.items()}
    if isinstance(value, list):
        return [restored(item) for item in value]
    return float(value) if isinstance(value, str) and value in NOT_FINITE else value


def number(report: RunReport, stage: str, key: str) -> float | None:
    """Return one number from the facts of a main-line stage, or None where there is none of that name."""
    entry = report.stage(stage)
    value = restored(entry.facts.get(key)) if entry is not None else None
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def flatten(values: JsonObject, prefix: str = "") -> list[tuple[str, str]]:
    """Return nested JSON as (dotted key, text) pairs, in their order; a list of plain values is one text."""
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
