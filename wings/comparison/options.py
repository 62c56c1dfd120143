"""The options of `gauntlet bench`, `compare` and `targets`."""

import argparse

from flows.cli.argument_types import at_least, input_shape, names
from flows.cli.commands import INVALID, LOOK, MODELS, AddCommand, Commands, adder

USES = {
    "bench": (MODELS, "gauntlet bench model.onnx other.onnx --batch 1,8"),
    "targets": (MODELS, "gauntlet targets install openvino"),
    "compare": (LOOK, "gauntlet compare 20260101 20260102"),
}


def add_commands(commands: Commands) -> None:
    """Add the commands."""
    add = adder(commands, "wings.comparison", USES)
    _add_bench(add)
    _add_compare(add)
    _add_targets(add)


def _add_bench(add: AddCommand) -> None:
    codes = f"exit codes: 0 measured, 1 a model failed or is not what it claims to be, {INVALID}, 3 a stage broke"
    bench = add("bench", "bench_command:bench", "race any ONNX models on any targets", codes)
    bench.add_argument("models", nargs="+", metavar="MODEL", help=".onnx files; the first is the reference")
    _add_bench_targets(bench)
    _add_bench_race(bench)
    bench.add_argument("--json", action="store_true", help="print JSON")
    bench.add_argument("--plot", metavar="FILE", help="plot latency against batch size into a .png or .svg file")
    bench.add_argument("--mlflow", metavar="EXPERIMENT", help="record the results in MLflow, too")


def _add_bench_targets(bench: argparse.ArgumentParser) -> None:
    which = "names from `gauntlet targets`, or all; the first that can run here is the reference; by default ort-cpu"
    bench.add_argument("--targets", type=names, default=[], metavar="NAME,...", help=which)
    target = "one more target with its options: kind=openvino,precision=bf16"
    bench.add_argument("--target", type=pairs, action="append", default=[], metavar="kind=KIND,...", help=target)
    threads = "threads of each session, by default all; ort-cpu races with each"
    bench.add_argument("--threads", type=sizes, metavar="N,...", help=threads)
    other = "race ort-cpu with other session options, too: "
    other += "threads=1, spinning=false, arena=false, inter_op_threads=2, level=extended"
    bench.add_argument("--session", type=pairs, action="append", default=[], metavar="OPTION=VALUE,...", help=other)
    model = "a trained model (.pt, .keras, .zip, .npz, .skops) for its framework's targets"
    bench.add_argument("--framework-model", metavar="FILE", help=model)
    trust = "run the code that this file brings; not needed for the model of a run in this home"
    bench.add_argument("--trust", action="store_true", help=trust)
    memory = "memory limit of each worker; by default half of what this process may use"
    bench.add_argument("--memory-gb", type=float, metavar="GB", help=memory)


def _add_bench_race(bench: argparse.ArgumentParser) -> None:
    bench.add_argument("--batch", type=sizes, default=[1, 8], metavar="N,...", help="batch sizes; by default 1,8")
    bench.add_argument("--rounds", type=at_least(6), default=16, help="by default 16, at least 6")
    bench.add_argument("--block-ms", type=float, default=60.0, help="time of each pair in a round and batch size")
    drop = "drop pairs early once they are proven not to be the fastest"
    bench.add_argument("--early-stopping", action="store_true", help=drop)
    bench.add_argument("--inputs", metavar="FILE.npz", help="samples by input name; by default random")
    shape = "shape of one sample, where the model leaves it open; may be repeated"
    bench.add_argument("--shape", type=input_shape, action="append", default=[], metavar="INPUT=3x224x224", help=shape)
    bench.add_argument("--timeout", type=float, default=120.0, metavar="SECONDS", help="for any one reply of a worker")
    bench.add_argument("--seed", type=int, default=0, help="of the random inputs and the order of the race")


def _add_compare(add: AddCommand) -> None:
    compare = add("compare", "compare_command:show_comparison", "compare two runs: winners, gates, settings")
    for which in ("first", "second"):
        compare.add_argument(which, metavar="RUN", help="id of a run, or its first characters")
    compare.add_argument("--json", action="store_true", help="print JSON")


def sizes(text: str) -> list[int]:
    """Return the sizes in a list with commas."""
    return [at_least(1)(size) for size in text.split(",")]


def pairs(text: str) -> dict[str, str]:
    """Return the options in a list with commas."""
    pairs = [pair.partition("=") for pair in text.split(",")]
    if not all(name and value for name, _, value in pairs):
        raise argparse.ArgumentTypeError(f"{text!r}: write OPTION=VALUE,...")
    return {name: value for name, _, value in pairs}


def _add_targets(add: AddCommand) -> None:
    text = "list the execution targets that can run here, and why others cannot"
    targets = add("targets", "targets_command:show_targets", text)
    targets.add_argument("--json", action="store_true", help="print JSON")
    subcommands = targets.add_subparsers(metavar="[install NAME]")
    install = subcommands.add_parser("install", help="create the Python environment of a target")
    install.set_defaults(command="wings.comparison.targets_command:install_environment")
    install.add_argument("name", metavar="NAME", help="as named by `gauntlet targets`")
