"""`gauntlet targets` on the terminal: what can run here, what cannot and why, and environments that make it so."""

import argparse
import json
from concurrent.futures import ThreadPoolExecutor

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tasks.render.format import clean
from tasks.runtime.threads import usable_threads
from tasks.targets import USUAL
from tasks.targets.environments import install


def show_targets(options: argparse.Namespace) -> int:
    """Try every usual target and say what became of it."""
    console = Console()
    with console.status("trying every target ...") as status:
        status.start() if console.is_terminal and not options.json else status.stop()
        with ThreadPoolExecutor(usable_threads()) as pool:
            reasons = list(pool.map(lambda target: target.unavailable(), USUAL))
    if options.json:
        entries = [
            {
                "name": t.name,
                "available": why is None,
                "reason": why,
                "precision": t.stated,
                **t.model_dump(mode="json"),
            }
            for t, why in zip(USUAL, reasons, strict=True)
        ]
        print(json.dumps(entries, indent=2))  # noqa: T201
        return 0
    table = Table(header_style="bold")
    table.add_column("target", no_wrap=True)
    table.add_column("states", no_wrap=True)
    table.add_column("can run here", overflow="fold")
    for target, why in zip(USUAL, reasons, strict=True):
        word = "[green]yes[/]" if why is None else f"no: {escape(clean(why))}"
        table.add_row(target.name, target.stated, word, style="" if why is None else "dim")
    console.print(table)
    console.print("Measure on some: gauntlet bench MODEL.onnx --targets NAME,NAME", style="dim")
    return 0


def install_environment(options: argparse.Namespace) -> int:
    """Make an environment."""
    install(options.name, lambda text: Console().print(escape(text), highlight=False, soft_wrap=True))
    return 0
