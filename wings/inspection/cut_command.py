"""`gauntlet cut`: a part of a model, between tensors inside it, as a model of its own."""

import argparse
from pathlib import Path

from rich.console import Console

from flows.cli.shared import plain
from gauntlet.core.errors import ConfigError
from gauntlet.reporting.text_format import number
from wings.inspection.library.cut_model import cut_model


def cut(options: argparse.Namespace) -> int:
    """Cut, and print what came out."""
    target = Path(options.output)
    if not options.inputs and not options.outputs:
        raise ConfigError(
            "nothing to cut. Fix: give --inputs or --outputs; gauntlet inspect MODEL --graph lists tensors"
        )
    if target.suffix != ".onnx":
        raise ConfigError(f"{target}: the result needs a name that ends in .onnx")
    if not target.parent.is_dir():
        raise ConfigError(f"{target}: no such folder: {target.parent}")
    if target.resolve() == Path(options.model).resolve():
        raise ConfigError(f"{target}: this is the model itself. Fix: write the part to another file")
    part = cut_model(Path(options.model), target, options.inputs, options.outputs)
    console = Console()
    console.print(
        f"[bold]{plain(str(part.output))}[/]  {number(part.nodes)} of {number(part.nodes_before)} nodes",
        highlight=False,
    )
    for title, tensors in (("inputs", part.inputs), ("outputs", part.outputs)):
        console.print(f"  {title}", style="dim")
        for name, kind in tensors.items():
            console.print(f"    {plain(name)}  {plain(kind)}", highlight=False)
    if part.not_compared:
        console.print(f"  not compared with the whole: {plain(part.not_compared)}", style="yellow", highlight=False)
    else:
        console.print("  equal to the whole on random inputs, to the bit", style="green", highlight=False)
    return 0
