"""`gauntlet run`: the pipeline in this process, with a Prefect server of its own where there is none."""

import argparse
import signal

from rich.console import Console

from configs.loader import load
from configs.required_packages import require_packages
from flows.cli.console import live, print_report
from flows.local_run import run_local
from flows.record.home import Home
from flows.record.journal import everything_sent
from gauntlet.core.run_report import RunReport


def run_pipeline(options: argparse.Namespace) -> int:
    """Run the pipeline and print its report; the exit code is the verdict."""
    config = load(options.config, tuple(options.set))
    require_packages(config)
    signal.signal(signal.SIGTERM, terminated)
    console, home = Console(), Home.find()
    with live(console):
        folder, code = run_local(config, home, fresh=options.fresh)
    print_report(console, RunReport.model_validate_json((folder / "report.json").read_bytes()), home)
    console.print("More: gauntlet show, gauntlet ui", highlight=False)
    if not everything_sent(folder):
        console.print("MLflow did not receive everything; send the rest with: gauntlet sync", style="yellow")
    return code


def terminated(*_: object) -> None:
    """End as after Ctrl-C: the record is closed, and no server of this process is left running."""
    raise SystemExit(128 + signal.SIGTERM)
