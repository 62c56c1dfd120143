"""What the request log costs: processor time of the server a request, and its memory, with the log and without.

    python benchmarks/request_log.py [--rounds 8] [--requests 2000]

Two servers of the same small model run at once, one with a request log that keeps outputs and statistics of the inputs.
In each round both get the same single requests, one server after the other, in an order that changes; what the log
costs is the difference of the processor time that the kernel counted for both processes, the log's thread included.
"""

import argparse
import random
import statistics
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import psutil
from results import Figure, add_result_option, write_result
from serving_overhead import Connection, timed
from serving_peers import Server, gauntlet

from gauntlet.bundle.bundle import CONTRACT, GOLDEN, MODEL, seal
from gauntlet.bundle.contract import BatchLatency, Contract
from gauntlet.core.arrays import NamedArrays
from gauntlet.core.signature import Preprocessing, Signature, TensorSpec
from gauntlet.runtime.batched_inference import batched_inference
from gauntlet.runtime.session import open_session

SIZE, CLASSES = 32, 10
NETWORK = f"""<ir_version: 8, opset_import: ["": 18]>
small (float[n, 3, {SIZE}, {SIZE}] image) => (float[n, {CLASSES}] scores)
<float[3, {CLASSES}] w, int64[2] flat = {{-1, 3}}> {{
  pooled = GlobalAveragePool(image)
  mean = Reshape(pooled, flat)
  scores = MatMul(mean, w)
}}"""
MOST_MICROSECONDS = 50.0
MOST_GROWTH_MB = 5.0
PLAIN, LOGGED = "without", "with the request log"


def make_bundle(folder: Path) -> tuple[Path, NamedArrays]:
    """Seal the bundle of a classifier that takes next to no time."""
    proto = onnx.parser.parse_model(NETWORK)
    for index, tensor in enumerate(proto.graph.initializer):
        if tensor.name == "w":
            weights = np.linspace(-1, 1, 3 * CLASSES, dtype=np.float32).reshape(3, CLASSES)
            proto.graph.initializer[index].CopyFrom(onnx.numpy_helper.from_array(weights, "w"))
    signature = Signature(
        inputs=(TensorSpec(name="image", dtype="float32", shape=("n", 3, SIZE, SIZE)),),
        outputs=(TensorSpec(name="scores", dtype="float32", shape=("n", CLASSES)),),
        preprocessing=Preprocessing(height=SIZE, width=SIZE, scale=1 / 255, mean=(0.5,) * 3, std=(0.25,) * 3),
        labels=tuple(map(str, range(CLASSES))),
    )
    signature.write(proto)
    folder.mkdir()
    onnx.save(proto, folder / MODEL)
    inputs: NamedArrays = {"image": np.random.default_rng(0).random((8, 3, SIZE, SIZE), np.float32)}
    outputs = batched_inference(open_session(folder / MODEL, threads=1), inputs).run(4)
    latencies = tuple(BatchLatency(batch=batch, median_ms=0.05 * batch) for batch in (1, 8))
    contract = Contract(
        name="small", run_id="benchmark", candidate="fp32", signature=signature, target="ort-cpu", latencies=latencies
    )
    (folder / CONTRACT).write_text(contract.model_dump_json())
    arrays = {f"inputs/{k}": v for k, v in inputs.items()} | {f"outputs/{k}": v for k, v in outputs.items()}
    np.savez(folder / GOLDEN, allow_pickle=False, **arrays)
    seal(folder)
    return folder, {"image": inputs["image"][:1]}


def process_of(server: Server) -> psutil.Process:
    """Return the process that listens on the server's port."""
    for child in psutil.Process().children(recursive=True):
        if any(c.laddr.port == server.port and c.status == psutil.CONN_LISTEN for c in child.net_connections()):
            return child
    raise SystemExit(f"no process listens on port {server.port}")


def used_seconds(process: psutil.Process) -> float:
    """Return the processor time of a process so far."""
    times = process.cpu_times()
    return float(times.user + times.system)


def block(server: Server, process: psutil.Process, requests: int) -> tuple[float, float, float]:
    """Send requests one by one; return processor time and median latency of each in us, and the memory in MB."""
    connection = Connection(server)
    before = used_seconds(process)
    latencies = [timed(connection.ask) for _ in range(requests)]
    used = used_seconds(process) - before
    return 1e6 * used / requests, 1e6 * statistics.median(latencies), process.memory_info().rss / 1e6


def main() -> int:
    """Measure in turns, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--requests", type=int, default=2000, help="of each server in each round")
    add_result_option(parser)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        bundle, sample = make_bundle(Path(name) / "bundle")
        words = {PLAIN: (), LOGGED: ("--request-log", f"{name}/log", "--log-max-mb", "16")}
        servers = {way: stack.enter_context(gauntlet(bundle, "small", sample, *more)) for way, more in words.items()}
        processes = {way: process_of(server) for way, server in servers.items()}
        for way, server in servers.items():
            block(server, processes[way], options.requests)  # warm
        rounds = [
            {way: block(servers[way], processes[way], options.requests) for way in random.sample([*words], 2)}
            for _ in range(options.rounds)
        ]
        size = sum(path.stat().st_size for path in (Path(name) / "log").rglob("*") if path.is_file()) / 1e6
    return report(options, rounds, size)


def report(options: argparse.Namespace, rounds: list[dict[str, tuple[float, float, float]]], size_mb: float) -> int:
    """Print the medians over the rounds and the figures; return 1 where a goal is missed."""
    columns = ("server", "processor time, us a request", "p50, us", "memory, first round, MB", "last round, MB")
    rows = [
        (
            way,
            *(f"{statistics.median(r[way][i] for r in rounds):.0f}" for i in (0, 1)),
            f"{rounds[0][way][2]:.1f}",
            f"{rounds[-1][way][2]:.1f}",
        )
        for way in (PLAIN, LOGGED)
    ]
    for row in (columns, ("---",) * len(columns), *rows):
        print("| " + " | ".join(row) + " |")
    added = [round(statistics.median(r[LOGGED][i] - r[PLAIN][i] for r in rounds), 1) for i in (0, 1)]
    growth = round(rounds[-1][LOGGED][2] - rounds[0][LOGGED][2], 1)
    figures = (
        Figure(name="processor time of the log", value=added[0], unit="us a request", goal="at most 50 us",
               met=added[0] <= MOST_MICROSECONDS),
        Figure(name="latency that the log adds, p50", value=added[1], unit="us", goal="at most 50 us",
               met=added[1] <= MOST_MICROSECONDS),
        Figure(name="growth of the memory from the first round to the last", value=growth, unit="MB",
               goal="at most 5 MB", met=growth <= MOST_GROWTH_MB),
        Figure(name="size of the log at the end", value=round(size_mb, 1), unit="MB", goal="at most 16 MB",
               met=size_mb <= 16),
    )  # fmt: skip
    for one in figures:
        print(f"{one.name}: {one.value:g} {one.unit} (goal: {one.goal}{'' if one.met else ', missed'})")
    if options.result:
        load = f"load of the machine at the end {psutil.getloadavg()[0]:.1f}"
        write_result(
            options.result,
            topic="monitoring",
            claim="The request log costs a server little",
            conditions=f"{len(rounds)} rounds in turns of {options.requests} requests of a {SIZE}x{SIZE} image, {load}",
            figures=figures,
            columns=columns,
            rows=rows,
        )
    return 0 if all(one.met for one in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
