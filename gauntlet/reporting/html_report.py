"""Render a run as one self-contained HTML page, without scripts."""

import base64
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from gauntlet.core.frozen import Frozen
from gauntlet.core.run_report import RunReport, StageEntry
from gauntlet.problems.prediction import DRAWINGS
from gauntlet.reporting import latency_table, scores, timeline
from gauntlet.reporting import text_format as written
from gauntlet.reporting.drawing import drawn
from gauntlet.reporting.section import sections
from gauntlet.reporting.summary_cards import summary_cards
from gauntlet.reporting.text_format import is_web

MAX_OBSTACLES = 6
MAX_NAMES = 5
MAX_BATCH_SIZES = 4
"""Columns in the table of candidates; the other batch sizes are listed below it."""


def render_html(report: RunReport, store: Path | None = None, pareto: Markup | None = None) -> str:
    """Return the run as HTML; with the artifact store's folder, file paths are absolute. `pareto` is drawn already."""
    obstacles, base, outcome = timeline.blocking_checks(report), timeline.reference(report), report.outcome
    reference = base.name if base else ""
    main = [entry for entry in report.stages if entry.candidate is None]
    candidates, batch_sizes = timeline.ordered_candidates(report), timeline.batch_sizes(report)
    return render_template(
        "report.html.j2",
        report=report,
        store=store,
        model=timeline.model_file(report, store or Path()),
        bundle=timeline.bundle_file(report, store or Path()),
        uses=timeline.bundle_uses(report),
        tiles=summary_cards(report),
        obstacles=obstacles,
        reason=timeline.own_reason(report),
        steps=timeline.timeline(report),
        candidates=candidates,
        reference=reference,
        batch_sizes=batch_sizes[:MAX_BATCH_SIZES],
        targets=len({candidate.target for candidate in candidates if candidate.target}),
        forest=drawn("forest", candidates, reference, outcome.required_speedup),
        pareto=pareto or drawn("pareto", report),
        latencies=latency_table.lines(report),
        noise=outcome.noise,
        sections=[
            *(render_template("section.html.j2", name=name, section=s) for name, s in sections(report).items()),
            *_sections(report, main[::-1]),
        ],
        chains=_sections(report, [entry for entry in report.stages if entry.stage not in {e.stage for e in main}]),
        gates=timeline.gates(report),
        drawings=_drawings(report, store or Path()),
        links={name: url for name, url in report.links.items() if is_web(url)},
    )


def _drawings(report: RunReport, store: Path) -> Markup:
    """Return the drawing of the winner's predictions, or of the reference's where the winner has none.

    Empty where no stage has drawn any, or where the file is no longer in the artifact store.
    """
    drawn = [(entry, entry.artifacts[DRAWINGS]) for entry in report.stages if DRAWINGS in entry.artifacts]
    best = [pair for pair in drawn if report.winner is not None and pair[0].candidate == report.winner]
    for entry, artifact in (*best, *(pair for pair in drawn if pair[0].candidate is None)):
        if (store / artifact.path).is_file():
            content = base64.b64encode((store / artifact.path).read_bytes()).decode()
            values = {"address": f"data:image/jpeg;base64,{content}", "candidate": entry.candidate}
            return render_template("drawings.html.j2", report=report, **values)
    return Markup()


def _sections(report: RunReport, entries: list[StageEntry]) -> list[Markup]:
    """Return what the stages' facts show; nothing of facts that are known as JSON alone."""
    known = [(entry, entry.known.section()) for entry in entries if entry.known is not None]
    return [
        render_template(section.template, report=report, entry=entry, section=section, **section.values)
        for entry, section in known
        if section is not None
    ]


def render_template(template: str, folder: Path | None = None, /, **values: Any) -> Markup:
    """Return a template filled with values, which are escaped; it is in `folder`, or one of those here."""
    return Markup(_environment(folder).get_template(template).render(values))  # the template escapes


@cache
def _environment(folder: Path | None) -> Environment:
    loader = FileSystemLoader([*([folder] if folder else []), Path(__file__).with_name("templates")])
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, finalize=_printable)
    environment.trim_blocks = environment.lstrip_blocks = True
    environment.globals.update(latency=latency_table, drawn=drawn, scores=scores)
    environment.globals.update(format=written, story=timeline, marks=timeline.MARKS, flatten=written.flatten)
    environment.globals.update(most_names=MAX_NAMES, most_obstacles=MAX_OBSTACLES)
    return environment


def _printable(value: Any) -> Any:
    if isinstance(value, Frozen):
        raise TypeError("a template must write fields, not whole objects")
    return written.printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value
