"""`gauntlet cut` and `join`: a part of a model as a model of its own, and two models as one."""

import argparse
from pathlib import Path

from flows.cli.shared import Output, plain
from gauntlet.core.errors import ConfigError
from gauntlet.reporting.text_format import number
from wings.inspection.library.cut_model import CutModel, cut_model
from wings.inspection.library.join_models import join_models


def cut(options: argparse.Namespace) -> int:
    """Cut, and print what came out."""
    target = Path(options.output)
    if not options.inputs and not options.outputs:
        raise ConfigError(
            "nothing to cut. Fix: give --inputs or --outputs; gauntlet inspect MODEL --graph lists tensors"
        )
    _require_new(target, options.model)
    _show(cut_model(Path(options.model), target, options.inputs, options.outputs), "the whole")
    return 0


def join(options: argparse.Namespace) -> int:
    """Join a detector and a reader, and print what came out."""
    target = Path(options.output)
    _require_new(target, options.detector, options.reader)
    files = Path(options.detector), Path(options.reader)
    _show(join_models(*files, target, options.boxes, options.classes, options.text), "the two")
    return 0


def _require_new(target: Path, *models: str) -> None:
    if target.suffix != ".onnx":
        raise ConfigError(f"{target}: the result needs a name that ends in .onnx")
    if not target.parent.is_dir():
        raise ConfigError(f"{target}: no such folder: {target.parent}")
    if target.resolve() in [Path(model).resolve() for model in models]:
        raise ConfigError(f"{target}: this is the model itself. Fix: write to another file")


def _show(part: CutModel, compared: str) -> None:
    console = Output()
    before = f" of {number(part.nodes_before)}" if part.nodes < part.nodes_before else ""
    text = f"[bold]{plain(str(part.output))}[/]  {number(part.nodes)}{before} nodes"
    console.print(text, highlight=False)
    for title, tensors in (("inputs", part.inputs), ("outputs", part.outputs)):
        console.print(f"  {title}", style="dim")
        for name, kind in tensors.items():
            console.print(f"    {plain(name)}  {plain(kind)}", highlight=False)
    if part.not_compared:
        console.print(f"  not compared with {compared}: {plain(part.not_compared)}", style="yellow", highlight=False)
    else:
        console.print(f"  equal to {compared} on random inputs, to the bit", style="green", highlight=False)
