"""Format numbers and foreign text, the same in every view."""

import math
import re
from datetime import UTC, datetime
from urllib.parse import urlsplit

from gauntlet.core.frozen import JsonObject

MISSING = "–"
METRICS = {
    "macro_f1": "macro F1",
    "micro_f1": "micro F1",
    "exact_match": "exact match",
    "r2": "R²",
    "rmse": "RMSE",
    "mae": "MAE",
    "map": "mAP@[.5:.95]",
    "map_50": "mAP@.5",
    "miou": "mIoU",
    "pixel_accuracy": "pixel accuracy",
    "character_accuracy": "characters right",
    "recall_at_1": "recall@1",
}
"""Metrics of `gauntlet.problems` that are not written as they are named."""
OPERATORS = {"<=": "≤", ">=": "≥", "<": "<", ">": ">", "==": "="}
UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")


def printable(text: str) -> str:
    """Replace control characters, surrogates, noncharacters and marks that change the direction of text."""
    return UNPRINTABLE.sub("\ufffd", text)


def number(value: float | None, digits: int = 4) -> str:
    """Write a number with up to `digits` significant digits; a whole number keeps all of its own."""
    if value is None:
        return MISSING
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else _signed("∞", value)
    if value == int(value) and abs(value) < 1e15:
        return _signed(f"{abs(int(value)):,}".replace(",", "\u202f" if abs(value) >= 10_000 else ""), value)
    mantissa, _, exponent = f"{abs(value):.{digits}g}".partition("e")
    return _signed(f"{mantissa}e{int(exponent)}" if exponent else mantissa, value)


def pair(value: float | None, limit: float) -> tuple[str, str]:
    """Write a value and its limit with enough digits that different numbers look different."""
    for digits in range(4, 18):
        texts = number(value, digits), number(limit, digits)
        if value == limit or texts[0] != texts[1]:
            break
    return texts


def fixed(value: float | None, decimals: int) -> str:
    """Write a number with a fixed number of decimals."""
    if value is None or not math.isfinite(value) or abs(value) >= 1e6:
        return number(value)
    return _signed(f"{abs(value):.{decimals}f}", value)


def counted(count: int, noun: str) -> str:
    """Write a number with its noun: `1 run`, `2 runs`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def size(size_bytes: float | None) -> str:
    """Write a size in decimal units: 11.3 MB."""
    if size_bytes is None:
        return MISSING
    value = float(size_bytes)
    if abs(value) < 1000:
        return f"{value:.0f} B"
    for unit in ("kB", "MB", "GB"):
        value /= 1000
        if abs(value) < 999.95:
            return f"{value:.1f} {unit}"
    return f"{value / 1000:.1f} TB"


def milliseconds(value_ms: float | None) -> str:
    """Write a latency with three significant digits: 0.0123, 1.23, 12.3, 123 ms."""
    if value_ms is None or math.isnan(value_ms):
        return MISSING
    if not math.isfinite(value_ms) or abs(value_ms) >= 1e6 or 0 < abs(value_ms) < 1e-4:
        return f"{number(value_ms, 3)} ms"
    whole = math.floor(math.log10(abs(value_ms))) + 1 if value_ms else 1
    return f"{value_ms:.{max(0, 3 - whole)}f} ms"


def speedup(value: float, low: float, high: float) -> str:
    """Write a speed-up with its interval: 3.72x [3.65, 3.80]."""
    return MISSING if math.isnan(value) else f"{ratio(value)} {interval(low, high)}"


def ratio(value: float) -> str:
    """Write a ratio: 3.72x."""
    return MISSING if math.isnan(value) else f"{fixed(value, 2)}x"


def interval(low: float, high: float) -> str:
    """Write an interval; `[unknown]` without a finite end."""
    return f"[{fixed(low, 2)}, {fixed(high, 2)}]" if math.isfinite(low) or math.isfinite(high) else "[unknown]"


def percent(share: float | None) -> str:
    """Write a share as a percentage: 98.9 %."""
    if share is None or not math.isfinite(share):
        return number(share)
    return f"{fixed(100 * share, 1)} %"


def metric_name(name: str, *, short: bool = False) -> str:
    """Write a metric's name as a title, or within a line (`short`)."""
    written = METRICS.get(name, name)
    return written.title() if name == "accuracy" and not short else written


def duration(seconds: float | None) -> str:
    """Write a duration: 0.42 s, 12.3 s, 3 min 12 s, 1 h 04 min."""
    if seconds is None or not 0 <= seconds < 1e9:
        return MISSING
    if seconds < 60:
        return f"{seconds:.2f} s" if seconds < 9.995 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def format_time(text: str) -> str:
    """Write an ISO 8601 time as date, time and zone; other text stays as it is."""
    try:
        time = datetime.fromisoformat(text)
        return (time if time.tzinfo else time.replace(tzinfo=UTC)).astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (ValueError, OverflowError):
        return text


def _signed(text: str, value: float) -> str:
    return f"\u2212{text}" if value < 0 else text


def is_web(url: str) -> bool:
    """Return whether a link is a web page's; others (javascript:, data:) must not be clickable."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme in {"http", "https"} and bool(parts.netloc)


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
