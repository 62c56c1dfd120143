"""What the product chooses, beside what its user would pick instead: one interleaved race, a process each.

    python benchmarks/peers.py [--network resnet18] [--targets ort-cpu,openvino-f32] [--prepare]

First everything is made, once, and kept (`--prepare` stops there): the network (see networks.py), the candidates of
`quantize: auto` with `deploy_targets: auto`, and the peers. NNCF and Olive quantize in environments of their own,
installed beside that of OpenVINO. Then the product races its candidates on all targets and chooses the fastest at each
batch size, and these race against the peers. Prints a table in Markdown: ratios to ONNX Runtime's FP32 with their 95 %
intervals, and signal to noise against the outputs of the framework that the network was trained in.
"""

import argparse
import dataclasses
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from networks import Network
from peer_files import REFERENCE, TIMEOUT_S, UNTRAINED, Prepared, Row, candidates, images, judged, network_of, peers
from results import Figure, add_result_option, write_result

from gauntlet.benchmarking.contender import Contender, RacePlan
from gauntlet.benchmarking.race import CONTROL, RaceOutcome, race
from gauntlet.benchmarking.rows import rows
from gauntlet.benchmarking.target_comparison import compare_targets
from gauntlet.reporting.text_format import fixed, milliseconds, number, percent, size, speedup
from gauntlet.runtime.resources import usable_threads
from gauntlet.targets import (
    Target,
    by_name,
)
from gauntlet.targets.environments import install


def choose(network: Network, models: dict[str, Path], targets: list[Target], plan: RacePlan) -> dict[str, Row]:
    """Let the product race its candidates on all targets; return the fastest at each batch size."""
    samples = images(network, "test", max(plan.batch_sizes))
    with tempfile.TemporaryDirectory() as place:
        found = compare_targets(models, targets, samples, Path(place), plan, say=lambda text: print(text, flush=True))
    for pair in found.pairs:
        told = "; ".join(f"batch {p.batch} {milliseconds(p.middle_ms)}" for p in pair.latency)
        print(f"  {pair.name}: {told or f'{pair.status}: {pair.reason}'}")
    by_target = {target.name: target for target in targets}
    chosen = {}
    for place, _ in enumerate(plan.batch_sizes):
        best = min((p for p in found.pairs if p.latency), key=lambda p: p.latency[place].middle_ms)
        chosen[f"**chosen: {best.name}**"] = Row(file=models[best.model], target=by_target[best.target])
    return judged(chosen, network)


def table(
    found: dict[str, Row], measured: dict[str, Contender], trained: bool
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Print the rows, the fastest at the first batch size first; return the columns and the rows."""
    base = measured[REFERENCE]
    sizes = [*base.round_medians_ms]
    heads = [head for batch in sizes for head in (f"batch {batch}, ms", f"batch {batch}, x FP32")]
    columns = ("file and runtime", *["accuracy"] * trained, "SQNR, dB", "size", *heads)
    print("|", " | ".join(columns), "|")
    print("|---|" + "---:|" * (len(columns) - 1))
    lines = []
    alive = [name for name in found if not measured[name].failure]
    for name in sorted(alive, key=lambda n: float(np.median(measured[n].round_medians_ms[sizes[0]]))):
        one = found[name]
        cells = [percent(one.accuracy)] * trained + [fixed(one.sqnr_db, 1), size(one.size_bytes)]
        for row in rows(measured[name], base, resolution=0):
            cells += [fixed(row.median_ms, 2), speedup(row.speedup, row.speedup_low, row.speedup_high)]
        lines.append((name, *cells))
        print("|", " | ".join(lines[-1]), "|", flush=True)
    for name in found:
        if measured[name].failure:
            print(f"{name}: {measured[name].failure}")
    return columns, lines


def arguments() -> argparse.Namespace:
    """Return the arguments of the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    networks = ("resnet18", "resnet50", "mobilenet_v3_large", "efficientnetb0")
    parser.add_argument("--network", default="resnet18", choices=networks)
    parser.add_argument("--targets", default="ort-cpu,openvino-f32", help="that the product has")
    parser.add_argument("--prepare", action="store_true", help="make everything anew, and stop")
    parser.add_argument("--tools", nargs="*", default=["nncf", "olive"], help="that get an environment of their own")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--rounds", type=int, default=16)
    parser.add_argument("--block-ms", type=float, default=60)
    add_result_option(parser)
    return parser.parse_args()


def race_together(network: Network, files: dict[str, Row], plan: RacePlan) -> RaceOutcome:
    """Race all files, and the reference against itself."""
    inputs = network.workspace("race").folder / "inputs.npz"
    np.savez(inputs, **images(network, "test", max(plan.batch_sizes)))
    entries = {name: row.entry() for name, row in files.items()}
    return race(entries | {CONTROL: files[REFERENCE].entry()}, inputs, plan)


def against_fastest_peer(
    measured: dict[str, Contender], chosen: dict[str, Row], peers: dict[str, Row], batches: tuple[int, ...]
) -> list[Figure]:
    """Print and return how the best chosen file compares with the fastest peer at each batch size."""
    figures = []
    for place, batch in enumerate(batches):
        times = {n: float(np.median(c.round_medians_ms[batch])) for n, c in measured.items() if not c.failure}
        ours, best = min(chosen, key=times.__getitem__), min(peers.keys() & times, key=times.__getitem__)
        row = rows(measured[ours], measured[best], resolution=0)[place]
        interval = speedup(row.speedup, row.speedup_low, row.speedup_high)
        print(f"batch {batch}: {ours} against the fastest peer ({best}): {interval}")
        figures.append(
            Figure(
                name=f"{ours.strip('*')} over {best}, batch {batch}",
                value=round(row.speedup, 2),
                low=round(row.speedup_low, 2),
                high=round(row.speedup_high, 2),
                goal="at least as fast as the best peer",
                met=row.speedup_high >= 1,
            )
        )
    return figures


def main() -> None:
    """Make, choose, race, print."""
    options = arguments()
    install("openvino", print)
    network, limits = network_of(options.network)
    note = network.folder / "prepared.json"
    if options.prepare or not note.is_file():
        ready = Prepared(candidates=candidates(network, limits), peers=peers(network, options.tools))
        note.write_text(ready.model_dump_json())
    if options.prepare:
        return
    prepared = Prepared.model_validate_json(note.read_bytes())
    plan = RacePlan(tuple(options.batch), options.rounds, options.block_ms, usable_threads(), TIMEOUT_S)
    first = dataclasses.replace(plan, rounds=max(6, options.rounds // 2), early_stopping=True)
    targets = [by_name(name) for name in options.targets.split(",")]
    chosen = choose(network, prepared.candidates, targets, first)
    files = prepared.peers | chosen
    result = race_together(network, files, plan)
    measured, other_load = result.contenders, number(result.machine.other_load_cores, 2)
    print(f"\n{options.network}, {datetime.now(UTC):%Y-%m-%d}, {plan.threads} threads, {plan.rounds} rounds")
    print(f"load {result.machine.load_average}, other work {other_load} cores\n")
    columns, lines = table(files, measured, limits is not UNTRAINED)
    control = rows(measured[CONTROL], measured[REFERENCE], resolution=0)
    beside = ", ".join(speedup(r.speedup, r.speedup_low, r.speedup_high) for r in control)
    print("\nFP32 against itself:", beside)
    figures = against_fastest_peer(measured, chosen, prepared.peers, plan.batch_sizes)
    if options.result:
        write_result(
            options.result,
            topic="peers",
            claim=f"{options.network}: at least as fast as what users would pick",
            conditions=f"{plan.rounds} rounds, {plan.threads} threads, one process a row; SQNR against the framework's "
            f"outputs; {other_load} cores of other work; FP32 beside itself: {beside}",
            figures=figures,
            columns=columns,
            rows=lines,
        )


if __name__ == "__main__":
    main()
