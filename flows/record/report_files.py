"""The files that a run leaves: its report for programs and for people, and where it ran."""

import json
from pathlib import Path

from gauntlet.core.artifact import write_atomically
from gauntlet.core.run_report import RunReport
from gauntlet.reporting import pareto_plot
from gauntlet.reporting.drawing import standalone
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
    write_atomically(folder / "report.html", render_html(report, store))
    write_atomically(folder / "environment.json", json.dumps(report.environment, indent=1))
    if (drawing := pareto_plot.draw(report)) is not None:
        write_atomically(folder / PARETO_FILE, standalone(drawing))
    return summary
