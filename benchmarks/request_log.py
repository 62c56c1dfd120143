"""What the request log costs: processor time of the server a request, and its memory, with the log and without.

    python benchmarks/request_log.py [--rounds 8] [--requests 2000]

First, entries with outputs and statistics of the inputs are logged in this process: their processor time is counted
with the log's own thread, and that of the calling thread alone. Then two servers of the same small model run at once,
one with such a log. In each round both get the same single requests, one server after the other, in an order that
changes; the difference of their latencies and of their processor times has the noise of the machine in it.
"""

import argparse
import random
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser
import psutil
from results import Figure, add_result_option, write_result
from serving_overhead import Connection, timed
from serving_peers import Server, gauntlet

from gauntlet.bundle.bundle import CONTRACT, GOLDEN, MODEL, Bundle, seal
from gauntlet.bundle.contract import BatchLatency, Contract
from gauntlet.core.arrays import NamedArrays
from gauntlet.core.signature import Preprocessing, Signature, TensorSpec
from gauntlet.runtime.batched_inference import batched_inference
from gauntlet.runtime.session import open_session
from serving.observations import Metrics
from serving.request_log import FLUSH_S, RequestLog, RequestLogConfig

SIZE, CLASSES = 32, 10
NETWORK = f"""<ir_version: 8, opset_import: ["": 18]>
small (float[n, 3, {SIZE}, {SIZE}] image) => (float[n, {CLASSES}] scores)
<int64[2] flat = {{-1, 3}}> {{
  pooled = GlobalAveragePool(image)
  mean = Reshape(pooled, flat)
  scores = MatMul(mean, w)
}}"""
BLOCK, BLOCKS = 500, 20
MOST_MICROSECONDS = 50.0
MOST_GROWTH_MB = 5.0
PLAIN, LOGGED = "without", "with the request log"


def make_bundle(folder: Path) -> tuple[Path, NamedArrays]:
    """Seal the bundle of a classifier that takes next to no time."""
    proto = onnx.parser.parse_model(NETWORK)
    weights = np.linspace(-1, 1, 3 * CLASSES, dtype=np.float32).reshape(3, CLASSES)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
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


def logged_here(bundle: Path, sample: NamedArrays, folder: Path) -> tuple[float, float, float]:
    """Log entries; return the processor time of one with all threads and in this one, in us, and the share lost."""
    opened, metrics = Bundle.open(bundle), Metrics()
    version, signature = opened.digest[:12], opened.contract.signature
    outputs = {"scores": np.zeros((1, CLASSES), np.float32)}
    log = RequestLog(RequestLogConfig(folder=folder), metrics)
    whole, calls = time.process_time(), 0.0
    for block in range(BLOCKS):
        start = time.thread_time()
        for number in range(BLOCK):
            log.add(f"{block}-{number}", version, signature, sample, outputs, 0.001)
        calls += time.thread_time() - start
        time.sleep(2 * FLUSH_S)  # as much as a busy server logs in this time
    log.close()
    entries = BLOCK * BLOCKS
    lost = metrics.registry.get_sample_value("gauntlet_request_log_entries_total", {"outcome": "lost"}) or 0.0
    return 1e6 * (time.process_time() - whole) / entries, 1e6 * calls / entries, lost / entries


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
        here = logged_here(bundle, sample, Path(name) / "here")
        words = {PLAIN: (), LOGGED: ("--request-log", f"{name}/log", "--log-max-mb", "16")}
        servers = {
            way: stack.enter_context(gauntlet(bundle, "small", sample, "--threads", "1", *more))
            for way, more in words.items()
        }
        processes = {way: process_of(server) for way, server in servers.items()}
        for way, server in servers.items():
            block(server, processes[way], options.requests)  # warm
        rounds = [
            {way: block(servers[way], processes[way], options.requests) for way in random.sample([*words], 2)}
            for _ in range(options.rounds)
        ]
        size = sum(path.stat().st_size for path in (Path(name) / "log").rglob("*") if path.is_file()) / 1e6
    return report(options, here, rounds, size)


def report(
    options: argparse.Namespace,
    here: tuple[float, float, float],
    rounds: list[dict[str, tuple[float, float, float]]],
    size_mb: float,
) -> int:
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
        Figure(name="processor time of an entry, the log's thread included", value=round(here[0], 1), unit="us",
               goal="at most 50 us", met=here[0] <= MOST_MICROSECONDS),
        Figure(name="processor time of an entry in the request's own thread", value=round(here[1], 1), unit="us"),
        Figure(name="entries lost", value=here[2], goal="0", met=here[2] == 0),
        Figure(name="processor time that it adds to a server, with the machine's noise", value=added[0], unit="us"),
        Figure(name="latency that the log adds, p50, with the machine's noise", value=added[1], unit="us"),
        Figure(name="growth of the memory from the first round to the last", value=growth, unit="MB",
               goal="at most 5 MB", met=growth <= MOST_GROWTH_MB),
        Figure(name="size of the log at the end", value=round(size_mb, 1), unit="MB", goal="at most 16 MB",
               met=size_mb <= 16),
    )  # fmt: skip
    for one in figures:
        print(f"{one.name}: {one.value:g} {one.unit}" + (f" (goal: {one.goal})" if one.goal else ""))
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
    return 1 if any(one.met is False for one in figures) else 0


if __name__ == "__main__":
    sys.exit(main())
