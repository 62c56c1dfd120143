"""The files that a run leaves: its report for programs and for people, and where it ran."""

import inspect
import json
import pkgutil
from pathlib import Path

from gauntlet.core.artifact import write_atomically
from gauntlet.core.kinds import kinds
from gauntlet.core.run_report import RunReport, StageEntry
from gauntlet.core.shipping import shipping_stages
from gauntlet.reporting.drawing import drawn, standalone
from gauntlet.reporting.html_report import render_html
from gauntlet.reporting.markdown_report import render_markdown

REPORT_FILES = ("report.json", "report.md", "report.html", "environment.json")
PARETO_FILE = "pareto.svg"
"""Of a run with a race."""


def write_report(report: RunReport, folder: Path, store: Path) -> str:
    """Write the files into the run's folder, `report.json` first; return the text of `report.md`.

    `store` is the folder of artifacts, which the report names the winner's file in.
    """
    write_atomically(folder / "report.json", report.model_dump_json(indent=1))
    summary = render_markdown(report, store)
    write_atomically(folder / "report.md", summary)
    drawing = drawn("pareto", report)
    write_atomically(folder / "report.html", render_html(report, store, drawing))
    write_atomically(folder / "environment.json", json.dumps(report.environment, indent=1))
    if drawing is not None:
        write_atomically(folder / PARETO_FILE, standalone(drawing))
    return summary


def read_report(path: Path) -> RunReport:
    """Return the report in a file, with the facts of known stages as objects; as JSON alone where they differ."""
    report = RunReport.read(path)
    return report.replace(stages=tuple(map(_with_facts, report.stages)))


def _with_facts(entry: StageEntry) -> StageEntry:
    try:
        brought = {stage.function.__name__: stage.function for stage in shipping_stages().values()}
        brought |= {function.__name__: function for function in kinds("explanation").values()}
        function = brought.get(entry.stage) or pkgutil.resolve_name(f"tasks.{entry.stage}:{entry.stage}")
        report = inspect.get_annotations(function, eval_str=True)["return"]
        facts = report.model_fields["facts"].annotation.model_validate_json(json.dumps(entry.facts))
    except (ImportError, AttributeError, KeyError, ValueError):
        return entry
    return entry.with_facts(facts)
