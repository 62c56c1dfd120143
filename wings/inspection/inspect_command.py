"""`gauntlet inspect` on the terminal: what a model file holds."""

import argparse
from pathlib import Path

from rich.console import Console
from rich.table import Table

from flows.cli.report_tables import NAME_WIDTH, NARROW, folded, plain_table
from flows.cli.shared import Output, plain
from gauntlet.reporting.text_format import number, printable, size
from wings.inspection.library.summary import Inspection, Layer, OperatorRow, inspect

MAX_LAYERS = 40
LAYER_WIDTH = 36
"""Of a layer's name where the terminal is narrow; its operator and output are then below it."""
MACS_UNKNOWN = "unknown"


def inspect_model(options: argparse.Namespace) -> int:
    """Print what is in the file."""
    inspection = inspect(Path(options.model))
    if options.json:
        print(inspection.model_dump_json(indent=2))  # noqa: T201
    elif options.graph:
        for line in inspection.graph:
            print(printable(line))  # noqa: T201
    elif options.weights:
        print_weights(Output(), inspection)
    else:
        print_inspection(Output(), inspection)
    return 0


def print_weights(console: Console, inspection: Inspection) -> None:
    """Print the statistics of each layer's largest stored tensor of floats."""
    table = plain_table("Weights")
    table.add_column("layer", no_wrap=True)
    for column in ("min", "max", "mean", "std", "zeros"):
        table.add_column(column, justify="right", no_wrap=True)
    for layer in inspection.layers:
        values = layer.weights
        if values is not None:
            numbers = (values.minimum, values.maximum, values.mean, values.std)
            bad = f" {values.non_finite} not finite" if values.non_finite else ""
            name = plain(folded(layer.name, NAME_WIDTH))
            table.add_row(name, *(f"{each:.3g}" for each in numbers), f"{values.zeros:.0%}{bad}")
    console.print(table)


def print_inspection(console: Console, inspection: Inspection) -> None:
    """Print the facts, the operators, and the layers that hold or compute most."""
    opsets = ", ".join(f"{domain} {version}" for domain, version in inspection.opsets.items())
    unknown = inspection.nodes_of_unknown_macs
    macs = number(inspection.macs) + (f" and those of {unknown} nodes whose shapes are unknown" if unknown else "")
    signature = inspection.signature
    facts = {
        "graph": inspection.graph_name or "without a name",
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
        sheet.add_row(name, plain(fact))
    operators = _table("By operator", "operator", numbers=("nodes",))
    for row in inspection.operators:
        operators.add_row(plain(row.operator), number(row.count), *_amounts(row))
    largest, total = inspection.layers[:MAX_LAYERS], len(inspection.layers)
    more = f", the first {MAX_LAYERS} of {total} (all of them: --json)" if total > MAX_LAYERS else ""
    wide = console.width >= NARROW
    layers = _table(f"By layer{more}", "layer", *(("operator", "output") if wide else ()))
    for layer in largest:
        words = (layer.name, layer.operator, layer.output)
        cells = words if wide else (f"{folded(layer.name, LAYER_WIDTH)}\n  {layer.operator} {layer.output}",)
        layers.add_row(*map(plain, cells), *_amounts(layer))
    console.print(f"[bold]{plain(inspection.model)}[/]", highlight=False)
    for part in (sheet, operators, layers):
        console.print(part)
    console.print("Every node: --graph. Weights: --weights. For programs: --json.", style="dim")


def _table(title: str, name: str, *texts: str, numbers: tuple[str, ...] = ()) -> Table:
    table = plain_table(title)
    table.add_column(name, overflow="fold")
    for column in texts:
        table.add_column(column, no_wrap=True)
    for column in (*numbers, "parameters", "size", "MACs"):
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _amounts(row: OperatorRow | Layer) -> tuple[str, str, str]:
    """Return the last cells of a row: parameters, size and MACs."""
    macs = MACS_UNKNOWN if row.macs is None else number(row.macs) if row.macs else ""
    return number(row.parameters), size(row.weights_bytes) if row.weights_bytes else "", macs
