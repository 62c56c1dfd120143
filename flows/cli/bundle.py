"""`gauntlet bundle`: copy the winner of a run out of the store."""

import argparse
import contextlib
from pathlib import Path

from rich.console import Console

from flows.cli.shared import plain
from flows.record.home import Home
from gauntlet.bundle.delivery import deliver, whole_bundle
from gauntlet.core.errors import ConfigError
from gauntlet.core.kinds import kinds
from gauntlet.core.run_report import RunReport
from gauntlet.core.signature import Signature
from gauntlet.reporting.text_format import size
from gauntlet.reporting.timeline import bundle_artifact

UNDONE = {"failed": "failed", "cancelled": "was cancelled"}


def bundle_run(options: argparse.Namespace) -> int:
    """Copy the bundle of a run to `--out`, signed if there is a key, or write what other packages make of it."""
    home = Home.find()
    console = Console(soft_wrap=True, highlight=False)
    name, source = stored_bundle(home, home.require_run(options.run)) if options.run else _newest_bundle(home, console)
    elsewhere = {kind: Path(target) for kind in kinds("delivery") if (target := getattr(options, f"as_{kind}"))}
    if options.key and elsewhere and not options.out:
        raise ConfigError("--key signs a copy of the bundle; name one with --out")
    for kind, target in elsewhere.items():
        for line in kinds("delivery")[kind](whole_bundle(source), target):
            console.print(plain(line))
    if options.out or not elsewhere:
        _copy(source, Path(options.out or f"{name}.zip"), options.key, console)
    return 0


def _newest_bundle(home: Home, console: Console) -> tuple[str, Path]:
    """Return the name and bundle of the newest run that has one, and name the run where it is not the newest."""
    newest = home.require_run()
    for folder in home.finished_runs():
        with contextlib.suppress(ConfigError):  # one that failed, or of another release
            bundle = stored_bundle(home, folder)
            if folder != newest:
                console.print(f"Run {plain(folder.name)}, the newest one with a bundle")
            return bundle
    return stored_bundle(home, newest)


def _copy(source: Path, target: Path, key: str | None, console: Console) -> None:
    bundle = deliver(source, target, Path(key) if key else None)
    total = sum(entry.size_bytes for entry in bundle.manifest.files.values())
    signed = ", signed" if key else ""
    console.print(f"{plain(str(target))}: {len(bundle.manifest.files)} files, {size(total)}{signed}")
    console.print(f"digest: {bundle.digest}")
    console.print(f"Use it: {plain(uses(bundle.contract.signature, target))}")


def uses(signature: Signature, bundle: Path) -> str:
    """Return the commands that verify a bundle, and predict with it what its model takes."""
    inputs = "IMAGE..." if signature.takes_images else "INPUTS.npz"
    return f"gauntlet verify {bundle}, gauntlet predict {bundle} {inputs}"


def stored_bundle(home: Home, folder: Path) -> tuple[str, Path]:
    """Return the name of a run's model, and its bundle in the store; `ConfigError` where there is none."""
    report = RunReport.read(folder / "report.json")
    if report.verdict != "passed":
        place = report.stopped_at or "the start"
        fix = "Fix: name one that passed: gauntlet runs"
        raise ConfigError(f"{folder.name}: the run {UNDONE[report.verdict]} at {place}, so it has no bundle. {fix}")
    artifact = bundle_artifact(report)
    if artifact is None:
        raise ConfigError(f"{folder.name}: the run has no bundle")
    path = home.store.path(artifact)
    if not home.store.is_intact(artifact):
        again = "Fix: run it again with: gauntlet run"
        raise ConfigError(f"{folder.name}: its bundle is not in the store any more, or was changed ({path}). {again}")
    return report.name, path
