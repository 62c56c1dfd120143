"""`gauntlet sync`: close killed runs, and send the tracking server what it missed."""

import argparse
import importlib

from flows.cli.interrupted import close_interrupted_runs
from flows.record.home import Home
from flows.record.journal import everything_sent
from flows.tracking.sender import Sender
from gauntlet.core.errors import StageError


def sync_runs(_options: argparse.Namespace) -> int:
    """Send what is missing of every run; raise `StageError` when a server cannot be reached or refuses the record."""
    home = Home.find()
    importlib.import_module("mlflow")  # without it, nothing would wait to be sent
    close_interrupted_runs(home)
    waiting = [folder for folder in home.run_folders() if not everything_sent(folder)]
    unsent = [folder.name for folder in waiting if not Sender(home, folder).send()]
    print(f"{len(waiting) - len(unsent)} of {len(waiting)} runs sent")  # noqa: T201
    if unsent:
        raise StageError(f"not sent: {', '.join(unsent)}; the server cannot be reached, or refuses the record")
    return 0
