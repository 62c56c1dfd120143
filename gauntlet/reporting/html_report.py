"""The run as one HTML page that needs nothing but itself: no script, no server, no network."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, UndefinedError
from markupsafe import Markup

from gauntlet.core.frozen import Frozen
from gauntlet.core.run_report import RunReport, StageEntry
from gauntlet.reporting import forest_plot, operator_times, scores, stage_facts, timeline, training_curves
from gauntlet.reporting import text_format as written
from gauntlet.reporting.summary_cards import summary_cards
from gauntlet.reporting.text_format import is_web

MOST_OBSTACLES = 6
MOST_NAMES = 5
MOST_BATCH_SIZES = 4
"""So many have a column in the table of candidates; the others are listed below it."""

OTHER_SHAPE = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, UndefinedError)
"""What reading facts raises that another version wrote."""

Prepare = Callable[[Any], dict[str, Any] | None]


def render_html(report: RunReport, store: Path | None = None) -> str:
    """Return the run as one self-contained HTML page.

    Args:
        report: the run.
        store: folder of the artifact store, where files are named with their whole path.
    """
    obstacles, reference = timeline.blocking_checks(report), _reference(report)
    candidates, batch_sizes = timeline.ordered_candidates(report), timeline.batch_sizes(report)
    return _render(
        "report.html.j2",
        report=report,
        store=store,
        model=timeline.model_file(report, store or Path()),
        tiles=summary_cards(report),
        obstacles=obstacles,
        reason_is_told=timeline.told_by(obstacles, report.reason),
        steps=timeline.timeline(report),
        candidates=candidates,
        reference=reference,
        batch_sizes=batch_sizes[:MOST_BATCH_SIZES],
        targets=len({candidate.target for candidate in candidates if candidate.target}),
        forest=forest_plot.draw(candidates, reference, stage_facts.number(report, "select", "required_speedup")),
        noise=stage_facts.number(report, "benchmark", "aa_deviation"),
        chains=[_section(e, "passes.html.j2", _passes) for e in report.stages if e.stage == "optimize" and e.candidate],
        kernels=_section(report.stage("benchmark"), "kernels.html.j2", operator_times.prepare),
        gates=timeline.gates(report),
        scores=_section(report.stage("evaluate"), "scores.html.j2", scores.prepare),
        data=_section(report.stage("data"), "data.html.j2", lambda data: {"images": data["images"]}),
        training=_section(report.stage("train"), "training.html.j2", training_curves.prepare),
        links={name: url for name, url in report.links.items() if is_web(url)},
    )


def _reference(report: RunReport) -> str:
    found = timeline.reference(report)
    return "" if found is None else found.name


def _passes(of_candidate: Any) -> dict[str, Any] | None:
    return {"passes": of_candidate["passes"]} if of_candidate.get("passes") else None


def _section(entry: StageEntry | None, template: str, prepare: Prepare) -> Markup:
    """Return the part of the page that shows a stage's facts: nothing where it did not run or has nothing to show.

    Facts that another version wrote may have another shape: then the page says so and refers to report.json.
    """
    if entry is None:
        return Markup()
    try:
        values = prepare(stage_facts.restored(entry.facts))
        return Markup() if values is None else _render(template, entry=entry, **values)
    except OTHER_SHAPE:
        return _render("unreadable.html.j2", entry=entry)


def _render(template: str, **values: Any) -> Markup:
    return Markup(_environment().get_template(template).render(values))  # the template escapes


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).with_name("templates")),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_printable,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(
        format=written,
        story=timeline,
        marks=timeline.MARKS,
        flatten=stage_facts.flatten,
        most_names=MOST_NAMES,
        most_obstacles=MOST_OBSTACLES,
    )
    return environment


def _printable(value: Any) -> Any:
    if isinstance(value, Frozen):
        raise TypeError("a template writes fields, not whole values")
    return written.printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value
