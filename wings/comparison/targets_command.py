"""`gauntlet targets`: which execution targets can run here, why the others cannot, and environments that add some."""

import argparse
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain

from rich.markup import escape

from flows.cli.report_tables import plain_table
from flows.cli.shared import Output, plain
from gauntlet.core.errors import ConfigError
from gauntlet.runtime.resources import usable_threads
from gauntlet.targets import default_targets
from gauntlet.targets.base import BaseTarget, unavailable_together
from gauntlet.targets.environments import folder, known, make


def show_targets(options: argparse.Namespace) -> int:
    """Try every default target and print whether it can run, and why not."""
    console, targets = Output(), default_targets()
    with console.status("trying every target ...") as status:
        status.start() if console.is_terminal and not options.json else status.stop()
        reasons = _reasons(targets)
    if options.json:
        entries = [
            {"name": t.name, "available": why is None, "reason": why, "precision": t.declared_precision}
            | t.model_dump(mode="json")
            for t, why in zip(targets, reasons, strict=True)
        ]
        print(json.dumps(entries, indent=2))  # noqa: T201
        return 0
    table = plain_table()
    table.add_column("target", no_wrap=True)
    table.add_column("precision", no_wrap=True)
    table.add_column("can run here", overflow="fold")
    grouped: dict[str | None, list[BaseTarget]] = {}
    for target, why in zip(targets, reasons, strict=True):
        grouped.setdefault(why, []).append(target)
    for why, alike in grouped.items():
        word = "\n".join("[green]yes[/]" for _ in alike) if why is None else f"no: {plain(why)}"
        names, precisions = "\n".join(t.name for t in alike), "\n".join(t.declared_precision for t in alike)
        table.add_row(names, precisions, word, style="" if why is None else "dim")
    console.print(table)
    console.print("To measure on some of them: gauntlet bench MODEL.onnx --targets NAME,NAME", style="dim")
    return 0


def _reasons(targets: Sequence[BaseTarget]) -> list[str | None]:
    """Return why each target cannot run here, or None; those of one engine are tried together."""
    engines: dict[object, list[BaseTarget]] = {}
    for target in targets:
        engines.setdefault((target.command(), target.options()["engine"]), []).append(target)
    with ThreadPoolExecutor(usable_threads()) as pool:
        reasons = pool.map(unavailable_together, engines.values())
        names = [target.name for of in engines.values() for target in of]
        named = dict(zip(names, chain.from_iterable(reasons), strict=True))
    return [named[target.name] for target in targets]


def install_environment(options: argparse.Namespace) -> int:
    """Create the Python environment of a target.

    Raises:
        ConfigError: when the name is unknown.
        StageError: when a package cannot be installed.
    """
    if (environment := known().get(options.name)) is None:
        names = ", ".join(known())
        raise ConfigError(f"targets install: unknown environment {options.name!r}; available: {names}")
    console = Output()
    make(folder(options.name), environment, lambda text: console.print(escape(text), highlight=False, soft_wrap=True))
    return 0
