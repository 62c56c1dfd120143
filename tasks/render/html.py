"""The run as one HTML page that needs nothing but itself: no script, no server, no network."""

from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from tasks.frozen import Frozen
from tasks.render import facts, forest, kernels, sparkline, story
from tasks.render import format as written
from tasks.render.links import is_web
from tasks.render.tiles import tiles
from tasks.run_report import RunReport

MOST_CLASSES_IN_MATRIX = 24
MOST_CLASSES_LISTED = 40
MOST_MISTAKES = 5
MOST_OBSTACLES = 6
MOST_NAMES = 5


class Race(facts.Read):
    """What the views need of the facts of `benchmark`."""

    aa_deviation: float


class Choice(facts.Read):
    """What the views need of the facts of `select`."""

    required_speedup: float


def render_html(report: RunReport) -> str:
    """Return the run as one self-contained HTML page."""
    race, choice = facts.read(report, "benchmark", Race), facts.read(report, "select", Choice)
    profiles = facts.read(report, "benchmark", kernels.Profiles)
    training = facts.read(report, "train", facts.Training)
    obstacles = story.obstacles(report)
    return (
        _environment()
        .get_template("report.html.j2")
        .render(
            report=report,
            reference=story.reference(report),
            tiles=tiles(report),
            obstacles=obstacles,
            reason_is_told=story.told_by(obstacles, report.reason),
            steps=story.steps(report),
            candidates=story.ranked(report),
            plot=forest.plan(tuple(story.ranked(report)), choice.required_speedup if choice else None),
            targets=len({row.target for c in report.candidates for row in c.benchmark}),
            noise=race.aa_deviation if race else None,
            chains=facts.chains(report),
            bars=kernels.plan(profiles),
            profiles=profiles.known if profiles else (),
            gates=story.gates(report),
            scores=facts.read(report, "evaluate", facts.Scores),
            training=training,
            curves=sparkline.curves(training.history) if training else (),
            images=facts.read(report, "data", facts.Images),
            links={name: url for name, url in report.links.items() if is_web(url)},
        )
    )


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
        format=written,
        marks=story.MARKS,
        flatten=facts.flatten,
        most_classes_in_matrix=MOST_CLASSES_IN_MATRIX,
        most_classes_listed=MOST_CLASSES_LISTED,
        most_names=MOST_NAMES,
        most_obstacles=MOST_OBSTACLES,
        most_mistakes=MOST_MISTAKES,
    )
    return environment


def _printable(value: Any) -> Any:
    if isinstance(value, Frozen):
        raise TypeError("a template writes fields, not whole values")
    return written.clean(value) if isinstance(value, str) and not isinstance(value, Markup) else value
