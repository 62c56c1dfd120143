"""The run as one HTML page that needs nothing but itself: no script, no server, no network."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from tasks.frozen import Frozen
from tasks.render import facts, forest, format, sparkline, story
from tasks.run_report import RunReport

MOST_CLASSES_IN_MATRIX = 24
MOST_CLASSES_LISTED = 40
MOST_MISTAKES = 5


@dataclass(frozen=True)
class Tile:
    """One figure at the top of the page."""

    label: str
    value: str
    notes: tuple[str, ...] = ()


class Race(facts.Read):
    """What the views need of the facts of `benchmark`."""

    aa_deviation: float


class Choice(facts.Read):
    """What the views need of the facts of `select`."""

    required_speedup: float


def render_html(report: RunReport) -> str:
    """Return the run as one self-contained HTML page."""
    race, choice = facts.read(report, "benchmark", Race), facts.read(report, "select", Choice)
    training = facts.read(report, "train", facts.Training)
    obstacles = story.obstacles(report)
    return _environment().get_template("report.html.j2").render(
        report=report,
        winner=story.winner(report),
        tiles=_tiles(report),
        obstacles=obstacles,
        reason_is_told=story.told_by(obstacles, report.reason),
        steps=story.steps(report),
        candidates=story.ranked(report),
        plot=forest.plan(tuple(story.ranked(report)), choice.required_speedup if choice else None),
        noise=race.aa_deviation if race else None,
        gates=story.gates(report),
        scores=facts.read(report, "evaluate", facts.Scores),
        training=training,
        curves=sparkline.curves(training.history) if training else (),
        images=facts.read(report, "data", facts.Images),
        links={name: url for name, url in report.links.items() if is_web(url)},
    )


def is_web(url: str) -> bool:
    """Tell whether a link leads to a web page; anything else (javascript:, data:) is not made clickable."""
    try:
        return urlsplit(url).scheme in {"http", "https"} and bool(urlsplit(url).netloc)
    except ValueError:
        return False


def _tiles(report: RunReport) -> list[Tile]:
    best, base = story.winner(report), story.reference(report)
    if best is None:
        return []
    tiles, row = [], story.decisive(report, best)
    if row is not None:
        others = [r for r in best.benchmark if r is not row]
        notes = [f"95 % interval {format.interval(row.speedup_low, row.speedup_high)}, batch {row.batch}"]
        notes = ["the reference itself"] if row.verdict == "reference" else notes
        notes += [_also(r.batch, format.speedup(r.speedup, r.speedup_low, r.speedup_high)) for r in others[:2]]
        tiles.append(Tile("Speed", f"{format.fixed(row.speedup, 2)}x", tuple(notes)))
        tiles.append(
            Tile(
                "Latency",
                format.milliseconds(row.median_ms),
                (f"median, batch {row.batch} on {row.target}",)
                + tuple(_also(r.batch, format.milliseconds(r.median_ms)) for r in others[:2]),
            )
        )
    compare = base if base is not None and base is not best else None
    tiles.append(Tile("Accuracy", format.percent(best.accuracy), _versus(compare, "accuracy", format.percent)))
    tiles.append(Tile("Size", format.size(best.size_bytes), _versus(compare, "size_bytes", format.size)))
    return tiles


def _also(batch: int, text: str) -> str:
    return f"{text} at batch {batch}"


def _versus(base: Any, field: str, write: Any) -> tuple[str, ...]:
    value = None if base is None else getattr(base, field)
    return () if value is None else (f"{base.name}: {write(value)}",)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_printable,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(
        format=format,
        marks=story.MARKS,
        flatten=facts.flatten,
        most_classes_in_matrix=MOST_CLASSES_IN_MATRIX,
        most_classes_listed=MOST_CLASSES_LISTED,
        most_mistakes=MOST_MISTAKES,
    )
    return environment


def _printable(value: Any) -> Any:
    if isinstance(value, Frozen):
        raise TypeError("a template writes fields, not whole values")
    return format.clean(value) if isinstance(value, str) and not isinstance(value, Markup) else value
