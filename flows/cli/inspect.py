"""`gauntlet inspect` on the terminal: what a model file holds."""

import argparse
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from gauntlet.inspection import Inspection, inspect
from gauntlet.reporting.text_format import number, printable, size

MOST_LAYERS = 40
MACS_UNKNOWN = "unknown"


def inspect_model(options: argparse.Namespace) -> int:
    """Print what is in the file."""
    inspection = inspect(Path(options.model))
    if options.json:
        print(inspection.model_dump_json(indent=2))  # noqa: T201
    elif options.graph:
        for line in inspection.graph:
            print(printable(line))  # noqa: T201
    else:
        print_inspection(Console(), inspection)
    return 0


def print_inspection(console: Console, inspection: Inspection) -> None:
    """Print the facts, the operators, and the layers that hold or compute most."""
    opsets = ", ".join(f"{domain} {version}" for domain, version in inspection.opsets.items())
    unknown = inspection.nodes_of_unknown_macs
    macs = number(inspection.macs) + (f" and those of {unknown} nodes whose shapes are unknown" if unknown else "")
    signature = inspection.signature
    facts = {
        "file": f"{size(inspection.size_bytes)}, IR {inspection.ir_version}, opset {opsets}"
        + (f", by {inspection.producer}" if inspection.producer else ""),
        "inputs": "\n".join(f"{name}  {kind}" for name, kind in inspection.inputs.items()),
        "outputs": "\n".join(f"{name}  {kind}" for name, kind in inspection.outputs.items()),
        "parameters": f"{number(inspection.parameters)} in {size(inspection.weights_bytes)}",
        "MACs": f"{macs}, for one sample",
        "signature": f"{signature.task}, {signature.layout}" if signature else "none",
    }
    sheet = Table.grid(padding=(0, 2))
    sheet.add_column(style="bold", no_wrap=True)
    sheet.add_column(overflow="fold")
    for name, fact in facts.items():
        sheet.add_row(name, _text(fact))
    console.print(f"[bold]{_text(inspection.model)}[/]", highlight=False)
    console.print(sheet)
    console.print(_operators(inspection))
    console.print(_layers(inspection))
    console.print("Every node: --graph. For programs: --json.", style="dim")


def _operators(inspection: Inspection) -> Table:
    table = Table(title="By operator", title_justify="left", header_style="bold")
    table.add_column("operator", overflow="fold")
    for title in ("nodes", "parameters", "size", "MACs"):
        table.add_column(title, justify="right", no_wrap=True)
    for row in inspection.operators:
        table.add_row(
            _text(row.operator), number(row.count), number(row.parameters), _size(row.weights_bytes), _macs(row.macs)
        )
    return table


def _layers(inspection: Inspection) -> Table:
    shown = inspection.layers[:MOST_LAYERS]
    more = len(inspection.layers) - len(shown)
    title = "By layer" + (
        f", the first {MOST_LAYERS} of {len(inspection.layers)} (all of them: --json)" if more else ""
    )
    table = Table(title=title, title_justify="left", header_style="bold")
    table.add_column("layer", overflow="fold")
    table.add_column("operator", no_wrap=True)
    table.add_column("output", no_wrap=True)
    for name in ("parameters", "size", "MACs"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in shown:
        cells = (row.name, row.operator, row.output)
        table.add_row(*map(_text, cells), number(row.parameters), _size(row.weights_bytes), _macs(row.macs))
    return table


def _size(size_bytes: int) -> str:
    return size(size_bytes) if size_bytes else ""


def _macs(macs: int | None) -> str:
    return MACS_UNKNOWN if macs is None else number(macs) if macs else ""


def _text(text: str) -> str:
    return escape(printable(text))
