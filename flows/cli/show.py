"""`gauntlet show`: the report of a finished run."""

import argparse

from rich.console import Console

from flows.cli.console import print_report
from flows.cli.interrupted import close_interrupted_runs
from flows.record.home import Home
from flows.record.report_files import read_report


def show_run(options: argparse.Namespace) -> int:
    """Print a run's report, also a killed one's; raise `ConfigError` when there is no such run."""
    home = Home.find()
    close_interrupted_runs(home)
    folder = home.require_run(options.run)
    text = (folder / "report.json").read_text(encoding="utf-8")
    if options.json:
        print(text)  # noqa: T201
    else:
        print_report(Console(), read_report(text), home)
    return 0
