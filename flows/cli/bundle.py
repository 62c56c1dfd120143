"""`gauntlet bundle`: copy the winner of a run out of the store."""

import argparse
import json
from pathlib import Path

from rich.console import Console

from flows.cli.shared import counted, plain
from flows.record.home import Home
from gauntlet.bundle.delivery import deliver, whole_bundle
from gauntlet.core.errors import ConfigError
from gauntlet.core.run_report import RunReport
from gauntlet.reporting.text_format import size
from gauntlet.reporting.timeline import bundle_file


def bundle_run(options: argparse.Namespace) -> int:
    """Copy the bundle of a run to `--out`, signed if there is a key, or write the forms that other options name."""
    home = Home.find()
    folder = home.require_run(options.run)
    name, source = stored_bundle(home, folder)
    console = Console(soft_wrap=True, highlight=False)
    forms = ((options.web, _write_page), (options.edge, _write_device_files), (options.trainable, _write_trainable))
    elsewhere = [(Path(target), write) for target, write in forms if target is not None]
    if options.key and elsewhere and not options.out:
        raise ConfigError("--key signs a copy of the bundle; name one with --out")
    for target, write in elsewhere:
        write(source, target, console)
    if options.out or not elsewhere:
        _copy(source, Path(options.out or f"{name}.zip"), options.key, console)
    return 0


def _copy(source: Path, target: Path, key: str | None, console: Console) -> None:
    bundle = deliver(source, target, Path(key) if key else None)
    total = sum(entry.size_bytes for entry in bundle.manifest.files.values())
    signed = ", signed" if key else ""
    console.print(f"{plain(str(target))}: {len(bundle.manifest.files)} files, {size(total)}{signed}")
    console.print(f"digest: {bundle.digest}")
    console.print(f"Use it: gauntlet verify {plain(str(target))}, gauntlet predict {plain(str(target))} IMAGE...")


def _write_page(source: Path, target: Path, console: Console) -> None:
    from gauntlet.bundle.web_page import write_web_page

    write_web_page(whole_bundle(source), target)
    console.print(f"{plain(str(target))}: a static page")
    console.print(f"Try it: python -m http.server --bind 127.0.0.1 --directory {plain(str(target))} 8000")


def _write_device_files(source: Path, target: Path, console: Console) -> None:
    from gauntlet.bundle.edge_files import MODEL_FILE, write_edge_files

    operators = write_edge_files(whole_bundle(source), target)
    total = (target / MODEL_FILE).stat().st_size
    console.print(f"{plain(str(target))}: {MODEL_FILE}, {size(total)}, {counted(operators, 'operator')}")
    console.print(f"Try it: python {plain(str(target / 'example.py'))}")


def _write_trainable(source: Path, target: Path, console: Console) -> None:
    from gauntlet.bundle.training_step import STEP, write_trainable

    sizes = write_trainable(whole_bundle(source), target).sizes()
    console.print(f"{plain(str(target))}: {STEP}, {sizes['classes']} classes of {sizes['features']} features")
    console.print(f"Use it: python {plain(str(target / 'example.py'))} SAMPLES.npz STEPS LEARNING_RATE")


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
