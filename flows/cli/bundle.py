"""`gauntlet bundle`: copy the winner of a run out of the store."""

import argparse
import json
from pathlib import Path

from rich.console import Console

from flows.cli.shared import plain
from flows.record.home import Home
from gauntlet.bundle.delivery import deliver
from gauntlet.core.errors import ConfigError
from gauntlet.core.run_report import RunReport
from gauntlet.reporting.text_format import size
from gauntlet.reporting.timeline import bundle_file


def bundle_run(options: argparse.Namespace) -> int:
    """Copy the bundle of a run to `--out`, and sign the copy if there is a key."""
    home = Home.find()
    folder = home.require_run(options.run)
    name, source = stored_bundle(home, folder)
    target = Path(options.out or f"{name}.zip")
    bundle = deliver(source, target, Path(options.key) if options.key else None)
    total = sum(entry.size_bytes for entry in bundle.manifest.files.values())
    signed = ", signed" if options.key else ""
    console = Console(soft_wrap=True, highlight=False)
    console.print(f"{plain(str(target))}: {len(bundle.manifest.files)} files, {size(total)}{signed}")
    console.print(f"digest: {bundle.digest}")
    console.print(f"Use it: gauntlet verify {plain(str(target))}, gauntlet predict {plain(str(target))} IMAGE...")
    return 0


def stored_bundle(home: Home, folder: Path) -> tuple[str, Path]:
    """Return the name of a run's model, and its bundle in the store; `ConfigError` where there is none."""
    text = (folder / "report.json").read_text(encoding="utf-8")
    again = "Fix: run it again with: gauntlet run"
    if json.loads(text).get("schema_version") == 1:
        raise ConfigError(f"{folder.name}: an earlier release made this run, without a bundle. {again}")
    report = RunReport.model_validate_json(text)
    if report.verdict == "failed":
        place = report.stopped_at or "the start"
        raise ConfigError(f"{folder.name}: the run failed at {place}, so it has no bundle")
    path = bundle_file(report, home.store.root)
    if path is None:
        raise ConfigError(f"{folder.name}: the run has no stage 'package'; an earlier release made it. {again}")
    if not path.is_file():
        raise ConfigError(f"{folder.name}: its bundle is not in the store any more ({path}). {again}")
    return report.name, path
