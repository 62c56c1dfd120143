"""Where a bundle comes from: a run of this home with its record in MLflow, or a file from elsewhere."""

import json
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pydantic import ValidationError

from flows.record.home import Home
from flows.record.journal import Journal
from flows.tracking.sender import PARENT, Sender
from flows.tracking.server import URI_VARIABLE, own_store, recorded_uri
from gauntlet.bundle.bundle import REPORT, Bundle
from gauntlet.core.errors import ConfigError, StageError, without_password
from gauntlet.core.run_report import RunReport

PACKAGE = "package"
"""The stage whose artifact `bundle` is a run's bundle."""

MAX_DESCRIPTION = 1000


@dataclass(frozen=True)
class Origin:
    """What is to be promoted."""

    name: str
    """Of the model."""
    run_id: str
    report: RunReport | None
    path: Path | None
    """The bundle; None for a run without one."""
    uri: str
    """The MLflow server that the run used."""
    experiment: str | None = None
    mlflow_run: str | None = None

    @cached_property
    def opened(self) -> Bundle:
        """The bundle; `ConfigError` when there is none."""
        if self.path is None:
            raise ConfigError(f"run {self.run_id} has no bundle. Fix: run it again with: gauntlet run {self.name}")
        return Bundle.open(self.path)

    def description(self) -> str:
        """Return what its version in the registry is, in a line: the winner, where it runs, and why it won."""
        contract = self.opened.contract
        reason = f": {self.report.reason}" if self.report else ""
        return f"{contract.candidate} on {contract.target}, of run {contract.run_id}{reason}"[:MAX_DESCRIPTION]

    def tags(self) -> dict[str, str]:
        """Return the tags of its version in the registry: where it comes from, and its key figures."""
        contract = self.opened.contract
        tags = {"gauntlet.run_id": contract.run_id, "winner": contract.candidate, "target": contract.target}
        candidates = self.report.candidates if self.report else ()
        winner = next((c for c in candidates if c.name == contract.candidate), None)
        if winner is not None:
            figures = {"accuracy": winner.accuracy, "sqnr_db": winner.sqnr_db, "size_bytes": winner.size_bytes}
            figures |= {f"latency.b{row.batch}.p50_ms": row.median_ms for row in winner.benchmark[:2]}
            figures |= {f"speedup.b{row.batch}.low": row.speedup_low for row in winner.benchmark[:2]}
            tags |= {name: f"{value:.6g}" for name, value in figures.items() if value is not None}
        return tags


def find_origin(home: Home, source: str) -> Origin:
    """Return the origin of a run of the home, by the first characters of its id, or of a bundle's file or folder.

    Raises:
        ConfigError: when it is neither, when its run is one of this home that made another bundle, or when the run is
            not in the server that it names.
    """
    path = Path(source)
    place: Path | None
    if path.exists():
        bundle = Bundle.open(path)
        run_id, name = bundle.contract.run_id, bundle.contract.name
        place, report = path.resolve(), report_in(bundle)
        _require_own(home, source, bundle)
    else:
        folder = home.finished_run(source)
        if folder is None:
            what = f"{source}: neither a bundle nor a run of {home.runs}"
            raise ConfigError(f"{what}. Fix: name a bundle's file or folder, or a run that passed: gauntlet runs")
        report = RunReport.read(folder / "report.json")
        run_id, name, package = report.run_id, report.name, report.stage(PACKAGE)
        artifact = package.artifacts.get("bundle") if package else None
        if artifact and not home.store.is_intact(artifact):
            where = home.store.path(artifact)
            raise ConfigError(f"{run_id}: its bundle in the store was removed or changed ({where}). Fix: run it again")
        place = home.store.path(artifact).resolve() if artifact else None
    known = home.runs / run_id
    if not (known / "journal.jsonl").exists():
        return Origin(name, run_id, report, place, own_store(home, os.environ.get(URI_VARIABLE) or home.mlflow_uri))
    return Origin(name, run_id, report, place, *_record_in_mlflow(home, known))


def _require_own(home: Home, source: str, bundle: Bundle) -> None:
    """Raise `ConfigError` for a bundle that names a run of this home, which made another one."""
    run = bundle.contract.run_id
    record = home.runs / run / "report.json"
    if run not in {folder.name for folder in home.run_folders()} or not record.is_file():
        return
    package = RunReport.read(record).stage(PACKAGE)
    made = package.facts.get("digest") if package else None
    if made not in (None, bundle.digest):
        raise ConfigError(
            f"{source}: its digest is {bundle.digest}, but the run {run} that it names made {made}. "
            f"Fix: promote the run itself: gauntlet promote {run}"
        )


def report_in(bundle: Bundle) -> RunReport | None:
    """Return the report that a bundle has of its run; None where there is none, or another version's."""
    try:
        return RunReport.model_validate_json((bundle.folder / REPORT).read_bytes())
    except (OSError, ValidationError):
        return None


def _record_in_mlflow(home: Home, folder: Path) -> tuple[str, str, str]:
    """Return the server that a run was recorded on, its experiment and its run there; send what is not sent yet."""
    start = next((event for event in Journal(folder / "journal.jsonl") if event["op"] == "start"), None)
    if start is None:
        raise ConfigError(f"{folder}: the run has no record of its tracking server")
    uri = recorded_uri(home, start)
    if not Sender(home, folder).send():
        raise StageError(
            f"MLflow at {without_password(uri)} did not accept the run's record. Fix: start it, or use an account that "
            "may record runs, then: gauntlet sync"
        )
    sent = json.loads((folder / "sent.json").read_text())
    return uri, str(sent["experiment"]), str(sent["runs"][PARENT])
