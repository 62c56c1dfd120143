"""The commands `gauntlet bench` and `gauntlet targets`, without what they need to run."""

import argparse
from collections.abc import Callable


def add_bench_and_targets(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add both commands to the parser."""
    codes = "exit codes: 0 measured, 1 something is not what it says, 2 the question was wrong, 3 a stage broke"
    bench = verbs.add_parser("bench", help="race any ONNX models on any targets", epilog=codes)
    bench.set_defaults(verb=bench_models)
    bench.add_argument("models", nargs="+", metavar="MODEL", help=".onnx files; the first is the reference")
    names = "names from `gauntlet targets`, or all; the first that can run here is the reference; by default ort-cpu"
    bench.add_argument("--targets", type=_names, default=[], metavar="NAME,...", help=names)
    target = "one more target, with its options, as in a configuration: kind=openvino,precision=bf16,env=FOLDER"
    bench.add_argument("--target", type=_options, action="append", default=[], metavar="kind=KIND,...", help=target)
    bench.add_argument("--batch", type=_sizes, default=[1, 8], metavar="N,...", help="samples a call; by default 1,8")
    bench.add_argument("--rounds", type=_at_least(6), default=16, help="by default 16, at least 6")
    bench.add_argument("--block-ms", type=float, default=60.0, help="time of each in a round and batch size")
    threads = "of each session, by default all that may be used; ort-cpu also races with each further number"
    bench.add_argument("--threads", type=_sizes, metavar="N,...", help=threads)
    session = "race ort-cpu in one more session: threads=1, spinning=false, arena=false, parallel=true, level=extended"
    bench.add_argument(
        "--session", type=_options, action="append", default=[], metavar="OPTION=VALUE,...", help=session
    )
    drop = "race on without pairs that are proven not to be the fastest"
    bench.add_argument("--early-drop", action="store_true", help=drop)
    bench.add_argument("--inputs", metavar="FILE.npz", help="samples by input name; random ones by default")
    shape = "of one sample, where the file leaves it open; may be repeated"
    bench.add_argument("--shape", type=_shape, action="append", default=[], metavar="INPUT=3x224x224", help=shape)
    source = "what a run's training left (.pt, .keras, .zip, .npz, .skops), for the targets of its framework"
    bench.add_argument("--source", metavar="FILE", help=source)
    bench.add_argument("--timeout", type=float, default=120.0, metavar="SECONDS", help="for any one answer of a worker")
    memory = "limit of each worker; by default, half of what this process may use"
    bench.add_argument("--memory-gb", type=float, metavar="GB", help=memory)
    bench.add_argument("--seed", type=int, default=0, help="of the random inputs and the order")
    bench.add_argument("--json", action="store_true", help="print JSON")
    bench.add_argument("--plot", metavar="FILE", help="draw latency against batch size into a .png or .svg")
    bench.add_argument("--mlflow", metavar="EXPERIMENT", help="record it in MLflow, too")

    targets = verbs.add_parser("targets", help="what models can be run on here, and why not on the others")
    targets.set_defaults(verb=show_targets)
    targets.add_argument("--json", action="store_true", help="print JSON")
    verb = targets.add_subparsers(metavar="install NAME").add_parser("install", help="make the environment of a target")
    verb.set_defaults(verb=install_environment)
    verb.add_argument("name", metavar="NAME", help="openvino, or web")


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def _sizes(text: str) -> list[int]:
    return [_at_least(1)(size) for size in text.split(",")]


def _options(text: str) -> dict[str, str]:
    pairs = [pair.partition("=") for pair in text.split(",")]
    if not all(name and value for name, _, value in pairs):
        raise argparse.ArgumentTypeError(f"{text!r}: write OPTION=VALUE,...")
    return {name: value for name, _, value in pairs}


def _at_least(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not text.strip().isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {least}")
        return int(text)

    return number


def _shape(text: str) -> tuple[str, tuple[int, ...]]:
    name, _, axes = text.rpartition("=")
    if not name:
        raise argparse.ArgumentTypeError(f"{text!r}: write INPUT=3x224x224")
    return name, tuple(_at_least(1)(axis) for axis in axes.split("x"))


def bench_models(options: argparse.Namespace) -> int:
    """Race models on targets."""
    from flows.bench import bench

    return bench(options)


def show_targets(options: argparse.Namespace) -> int:
    """Say what can run here."""
    from flows.targets import show_targets

    return show_targets(options)


def install_environment(options: argparse.Namespace) -> int:
    """Make the environment of a target."""
    from flows.targets import install_environment

    return install_environment(options)
