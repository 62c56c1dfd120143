"""Render a run as one self-contained HTML page, without scripts."""

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, UndefinedError
from markupsafe import Markup

from gauntlet.core.frozen import Frozen
from gauntlet.core.run_report import RunReport, StageEntry
from gauntlet.reporting import (
    drawn_predictions,
    forest_plot,
    latency_table,
    machines,
    operator_times,
    pareto_plot,
    scores,
    stage_facts,
    timeline,
    training_curves,
)
from gauntlet.reporting import text_format as written
from gauntlet.reporting.summary_cards import summary_cards
from gauntlet.reporting.text_format import is_web

MOST_OBSTACLES = 6
MOST_NAMES = 5
MOST_BATCH_SIZES = 4
"""Columns in the table of candidates; the other batch sizes are listed below it."""
OTHER_VERSION = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, UndefinedError)
"""Raised by facts that another version wrote."""

Prepare = Callable[[Any], dict[str, Any] | None]


def render_html(report: RunReport, store: Path | None = None) -> str:
    """Return the run as HTML; with the artifact store's folder, file paths are absolute."""
    obstacles, base = timeline.blocking_checks(report), timeline.reference(report)
    reference = base.name if base else ""
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
        reason_is_repeated=timeline.only_repeats(obstacles, report.reason),
        steps=timeline.timeline(report),
        candidates=candidates,
        reference=reference,
        batch_sizes=batch_sizes[:MOST_BATCH_SIZES],
        targets=len({candidate.target for candidate in candidates if candidate.target}),
        forest=forest_plot.draw(candidates, reference, _required_speedup(report)),
        pareto=pareto_plot.draw(report),
        latencies=latency_table.lines(report),
        noise=stage_facts.number(report, "benchmark", "aa_deviation"),
        normalization=_section(report.stage("normalize"), "normalization.html.j2", _normalization),
        chains=[_section(e, "passes.html.j2", _passes) for e in report.stages if e.stage == "optimize" and e.candidate],
        kernels=_section(report.stage("benchmark"), "kernels.html.j2", operator_times.prepare),
        machines=_machines(report),
        serving=_section(report.stage("serve"), "serving.html.j2", lambda facts: {"facts": facts}),
        gates=timeline.gates(report),
        scores=_section(report.stage("evaluate"), "scores.html.j2", scores.prepare),
        drawings=_drawings(report, store or Path()),
        data=_section(report.stage("data"), "data.html.j2", _data),
        training=_section(report.stage("train"), "training.html.j2", _training(report)),
        links={name: url for name, url in report.links.items() if is_web(url)},
    )


def _required_speedup(report: RunReport) -> float | None:
    by_speed = timeline.objective(report) in ("latency", "throughput")
    return stage_facts.number(report, "select", "required_speedup") if by_speed else None


def _machines(report: RunReport) -> Markup:
    found = machines.machines(report)
    return Markup() if found is None else render_template("machines.html.j2", found=found, view=machines)


def _drawings(report: RunReport, store: Path) -> Markup:
    values = drawn_predictions.prepare(report, store)
    return Markup() if values is None else render_template("drawings.html.j2", report=report, **values)


def _data(facts: Any) -> dict[str, Any]:
    return {"images": facts["images"], "near_duplicates": facts.get("near_duplicates", [])}


def _training(report: RunReport) -> Prepare:
    entry = report.stage("evaluate")
    fit = stage_facts.restored(entry.facts.get("fit")) if entry is not None else None
    return partial(training_curves.prepare, fit=fit)


def _passes(facts: Any) -> dict[str, Any] | None:
    return {"passes": facts["passes"]} if facts.get("passes") else None


def _normalization(facts: Any) -> dict[str, Any] | None:
    return {"facts": facts} if facts["steps"] else None


def _section(entry: StageEntry | None, template: str, prepare: Prepare) -> Markup:
    """Return the section of a stage's facts: empty if there are none, or a note if another version wrote them."""
    if entry is None:
        return Markup()
    try:
        values = prepare(stage_facts.restored(entry.facts))
        return Markup() if values is None else render_template(template, entry=entry, **values)
    except OTHER_VERSION:
        return render_template("unreadable.html.j2", entry=entry)


def render_template(template: str, **values: Any) -> Markup:
    """Return one of the templates filled with values, which are escaped."""
    return Markup(_environment().get_template(template).render(values))  # the template escapes


@cache
def _environment() -> Environment:
    loader = FileSystemLoader(Path(__file__).with_name("templates"))
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, finalize=_printable)
    environment.trim_blocks = environment.lstrip_blocks = True
    environment.globals.update(latency=latency_table)
    environment.globals.update(format=written, story=timeline, marks=timeline.MARKS, flatten=stage_facts.flatten)
    environment.globals.update(most_names=MOST_NAMES, most_obstacles=MOST_OBSTACLES)
    return environment


def _printable(value: Any) -> Any:
    if isinstance(value, Frozen):
        raise TypeError("a template must write fields, not whole objects")
    return written.printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value
