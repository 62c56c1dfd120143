"""`gauntlet show`: the report of a finished run."""

import argparse
import json

from rich.console import Console

from flows.cli.console import print_report
from flows.record.home import Home
from gauntlet.core.run_report import RunReport


def show_run(options: argparse.Namespace) -> int:
    """Print a finished run's report; raise `ConfigError` when there is no such run."""
    home = Home.find()
    folder = home.require_run(options.run)
    text = (folder / "report.json").read_text(encoding="utf-8")
    if options.json:
        print(text)  # noqa: T201
    elif json.loads(text).get("schema_version") == 1:  # of an earlier release, whose fields have other names
        print((folder / "report.md").read_text(encoding="utf-8"))  # noqa: T201
    else:
        print_report(Console(), RunReport.model_validate_json(text), home)
    return 0
