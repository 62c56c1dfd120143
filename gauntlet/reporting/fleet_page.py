"""Render the results of many models as one HTML page, without scripts."""

from gauntlet.core.fleet_report import FleetReport
from gauntlet.reporting.html_report import render_template


def render_fleet(report: FleetReport) -> str:
    """Return the page. Its links to the pages of runs hold from a fleet's folder in the home."""
    return render_template("fleet.html.j2", report=report)
