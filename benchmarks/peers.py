"""What the product chooses, beside what its user would pick instead: one interleaved race, a process each.

    python benchmarks/peers.py [--network resnet18] [--prepare] [--shared]

First the network (see networks.py) and the peers are made, once, and kept (`--prepare` stops there). NNCF and Olive
quantize in environments of their own, installed beside that of OpenVINO. Then `gauntlet run` takes the network's ONNX
file and its samples, with OpenVINO installed, once for each batch size that may decide; its winners race against the
peers. Prints a table in Markdown: ratios to ONNX Runtime's FP32 with their 95 % intervals, and signal to noise against
the outputs of the framework that the network was trained in.
"""

import argparse
import sys
from collections.abc import Sequence

import numpy as np
from networks import Network
from peer_files import REFERENCE, TIMEOUT_S, Prepared, Row, images, judged, network_of, peers
from product_run import SHARED, run_product, settings, winner_of
from results import Figure, Measured, conclude, script_parser

from flows.record.home import Home
from gauntlet.datasets import read_split
from gauntlet.datasets.splits import require_labels
from gauntlet.race.contender import Contender, Plan
from gauntlet.race.rows import rows
from gauntlet.race.table import RaceTable, run_race
from gauntlet.reporting.text_format import fixed, number, percent, size, speedup
from gauntlet.runtime.resources import usable_threads
from gauntlet.targets.environments import install


def choose(
    network: Network, name: str, changes: Sequence[str], batches: Sequence[int], *, labelled: bool
) -> dict[str, Row]:
    """Return what `gauntlet run` chooses at each batch size; `changes` are settings."""
    home, model = Home.find(), network.store.path(network.kept.model)
    samples = network.workspace("samples").folder
    for split in ("validation", "calibration", "test"):
        part = read_split(network.store.path(network.kept.splits[split]))
        labels = {"labels": require_labels(part)} if labelled else {}
        np.savez(samples / f"{split}.npz", allow_pickle=False, **part.take(slice(None)), **labels)
    chosen = {}
    for batch in batches:
        sizes = (f"benchmark.batch_sizes={[*batches]}", f"select.batch={batch}")
        words = (str(model), "--data", str(samples), *settings(f"name={name}", *sizes, *changes))
        report = run_product(home, network.folder / f"run-{batch}.log", *words)
        row = winner_of(report, home)
        print(f"batch {batch}: {report.winner} on {row.target.name}: {report.reason}", flush=True)
        chosen[f"**chosen: {report.winner} on {row.target.name}**"] = row
    return judged(chosen, network)


def table(
    files: dict[str, Row], measured: dict[str, Contender], trained: bool
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the columns and the rows, the fastest at the first batch size first; print what failed."""
    base = measured[REFERENCE]
    sizes = [*base.round_medians_ms]
    heads = [head for batch in sizes for head in (f"batch {batch}, ms", f"batch {batch}, x FP32")]
    columns = ("file and runtime", *["accuracy"] * trained, "SQNR, dB", "size", *heads)
    lines = []
    alive = [name for name in files if not measured[name].failure]
    for name in sorted(alive, key=lambda n: float(np.median(measured[n].round_medians_ms[sizes[0]]))):
        file = files[name]
        cells = [percent(file.accuracy)] * trained + [fixed(file.sqnr_db, 1), size(file.size_bytes)]
        for row in rows(measured[name], base, resolution=0):
            cells += [fixed(row.median_ms, 2), speedup(row.speedup, row.speedup_low, row.speedup_high)]
        lines.append((name, *cells))
    for name in files:
        if measured[name].failure:
            print(f"{name}: {measured[name].failure}")
    return columns, lines


def arguments() -> argparse.Namespace:
    """Return the arguments of the command."""
    parser = script_parser(__doc__)
    networks = ("resnet18", "resnet50", "mobilenet_v3_large", "efficientnetb0")
    parser.add_argument("--network", default="resnet18", choices=networks)
    parser.add_argument("--prepare", action="store_true", help="make everything anew, and stop")
    parser.add_argument("--tools", nargs="*", default=["nncf", "olive"], help="that get an environment of their own")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--rounds", type=int, default=16)
    parser.add_argument("--block-ms", type=float, default=60)
    parser.add_argument("--shared", action="store_true", help="other work runs: one thread, and one process a file")
    return parser.parse_args()


def race_together(network: Network, files: dict[str, Row], plan: Plan) -> RaceTable:
    """Race all files, and the reference against itself."""
    inputs = network.workspace("race").folder / "inputs.npz"
    np.savez(inputs, allow_pickle=False, **images(network, "test", max(plan.batch_sizes)))
    entries = {name: row.entry() for name, row in files.items()}
    return run_race(entries, plan, REFERENCE, inputs=inputs)


def against_fastest_peer(
    measured: dict[str, Contender], chosen: dict[str, Row], peers: dict[str, Row], batches: tuple[int, ...]
) -> list[Figure]:
    """Return how the best chosen file compares with the fastest peer at each batch size."""
    figures = []
    for place, batch in enumerate(batches):
        times = {n: float(np.median(c.round_medians_ms[batch])) for n, c in measured.items() if not c.failure}
        ours, best = min(chosen, key=times.__getitem__), min(peers.keys() & times, key=times.__getitem__)
        row = rows(measured[ours], measured[best], resolution=0)[place]
        figures.append(
            Figure(name=f"{ours.strip('*')} over {best}, batch {batch}", value=round(row.speedup, 2),
                   low=round(row.speedup_low, 2), high=round(row.speedup_high, 2),
                   goal="at least as fast as the best peer", met=row.speedup_high >= 1)
        )  # fmt: skip
    return figures


def main() -> int:
    """Make, choose, race, print; 1 where a peer is faster."""
    options = arguments()
    install("openvino", print)
    network, limits = network_of(options.network)
    note = network.folder / "prepared.json"
    if options.prepare or not note.is_file():
        note.write_text(Prepared(peers=peers(network, options.tools)).model_dump_json())
    if options.prepare:
        return 0
    known = Prepared.model_validate_json(note.read_bytes()).peers
    threads = 1 if options.shared else usable_threads()
    plan = Plan(tuple(options.batch), options.rounds, options.block_ms, threads, TIMEOUT_S, restarts=not options.shared)
    changes = (*limits, f"benchmark.rounds={plan.rounds}", *(SHARED if options.shared else ()))
    chosen = choose(
        network, f"peers-{options.network.replace('_', '-')}", changes, plan.batch_sizes, labelled=not limits
    )
    files = known | chosen
    result = race_together(network, files, plan)
    measured, other_load = result.contenders, number(result.machine.other_load_cores, 2)
    columns, lines = table(files, measured, not limits)
    beside = ", ".join(speedup(r.speedup, r.speedup_low, r.speedup_high) for r in result.control)
    figures = against_fastest_peer(measured, chosen, known, plan.batch_sizes)
    claim = f"{options.network}: at least as fast as what users would pick"
    conditions = (
        f"{plan.rounds} rounds, {plan.threads} threads, one process a row; SQNR against the framework's outputs; "
        f"{other_load} cores of other work; FP32 beside itself: {beside}"
    )
    return conclude(Measured(claim, conditions, tuple(figures), columns, lines), "peers", options.result)


if __name__ == "__main__":
    sys.exit(main())
