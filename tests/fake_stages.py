"""Stages of three lines, which take no more than their core to import: workers load them."""

import os
import signal
import time
from pathlib import Path

from gauntlet.core.artifact import Artifact
from gauntlet.core.facts import Facts
from gauntlet.core.report import Check, Report
from gauntlet.core.stage import stage
from gauntlet.core.workspace import Workspace


class Nothing(Facts):
    """Facts of a stage that finds out nothing."""


def text(workspace: Workspace, content: str) -> Report[Nothing]:
    """Return a report with a text as its artifact `model`."""
    path = workspace.folder / "text"
    path.write_text(content)
    return Report(facts=Nothing(), artifacts={"model": workspace.store_file(path)})


def wait_in(name: str) -> None:
    """Write the number of this process into the file that WAITING names, and wait, if it names this stage."""
    stage_name, _, file = os.environ.get("WAITING", "").partition("=")
    if name == stage_name:
        Path(file).write_text(f"{os.getpid()} ")
        while True:
            time.sleep(0.05)


def begin(config: str, workspace: Workspace) -> Report[Nothing]:
    wait_in("begin")
    return text(workspace, config)


def make(config: float, workspace: Workspace, *, source: Artifact) -> Report[Nothing]:
    """Make a candidate's file; negative ones do not pass."""
    wait_in("make")
    report = text(workspace, f"{config} of {workspace.path(source).read_text()}")
    return report.replace(checks=(Check.of("make.min", config, ">=", 0),))


@stage(measured=True)
def race(config: str, workspace: Workspace, *, source: Artifact) -> Report[Nothing]:
    wait_in("race")
    return text(workspace, config)


def die(config: float, workspace: Workspace, *, source: Artifact) -> Report[Nothing]:
    os.kill(os.getpid(), signal.SIGKILL)
    return text(workspace, "never")


def pause(config: float, workspace: Workspace, *, source: Artifact) -> Report[Nothing]:
    """Wait for ever the first time, and leave a mark."""
    mark = Path(os.environ["PAUSED"])
    if not mark.exists():
        mark.touch()
        time.sleep(600)
    return text(workspace, str(config))
