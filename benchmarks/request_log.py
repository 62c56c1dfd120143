"""What the request log costs: processor time of the server a request, and its memory, with the log and without.

    python benchmarks/request_log.py [--rounds 8] [--requests 2000]

First, entries with outputs and statistics of the inputs are logged in this process, without and with embeddings: their
processor time is counted with the log's own thread, and that of the calling thread alone; and calls of the model with
the embedding as an output are timed in turns with calls without it. Then three servers of the same small model run at
once: without a log, with one, and with one that has embeddings. In each round all get the same single requests, one
server after the other, in an order that changes; the differences of their latencies and of their processor times have
the noise of the machine in them.
"""

import argparse
import math
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser
import psutil
from results import Figure, Measured, add_result_option, conclude
from serving_overhead import asking, timed
from serving_peers import Server, gauntlet

from gauntlet.bundle.bundle import CONTRACT, GOLDEN, MODEL, Bundle, seal
from gauntlet.bundle.contract import BatchLatency, Contract
from gauntlet.core.arrays import NamedArrays
from gauntlet.core.signature import Preprocessing, Signature, TensorSpec
from gauntlet.monitoring.reference import REFERENCE, MonitoringReference
from gauntlet.onnx_model.embedding_output import VALUES, find_embedding
from gauntlet.runtime.batched_inference import batched_inference
from gauntlet.runtime.embedding_session import open_embedding_session
from gauntlet.runtime.session import open_session
from serving.observations import Metrics
from serving.request_log import FLUSH_S, RequestLog, RequestLogConfig

SIZE, CLASSES, WIDTH = 32, 10, 512
NETWORK = f"""<ir_version: 8, opset_import: ["": 18]>
small (float[n, 3, {SIZE}, {SIZE}] image) => (float[n, {CLASSES}] scores)
<int64[2] flat = {{-1, 3}}> {{
  pooled = GlobalAveragePool(image)
  mean = Reshape(pooled, flat)
  wide = MatMul(mean, v)
  hidden = Relu(wide)
  scores = MatMul(hidden, w)
}}"""
BLOCK, BLOCKS, CALLS = 500, 20, 5000
MOST_MICROSECONDS = 50.0
MOST_GROWTH_MB = 5.0
PLAIN, LOGGED, EMBEDDED = "without", "with the request log", "with the request log and embeddings"
KEPT = {LOGGED: "statistics", EMBEDDED: "embeddings"}
"""What these servers log of the inputs."""
Costs = tuple[float, float, float]


def make_bundle(folder: Path) -> tuple[Path, NamedArrays]:
    """Seal the bundle of a classifier that takes next to no time."""
    proto = onnx.parser.parse_model(NETWORK)
    for name, shape in {"v": (3, WIDTH), "w": (WIDTH, CLASSES)}.items():
        weights = np.linspace(-1, 1, math.prod(shape), dtype=np.float32).reshape(shape)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(weights, name))
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
    _, embedding = sessions(folder)
    found = find_embedding(proto, "scores")
    many: NamedArrays = {"image": np.random.default_rng(1).random((100, 3, SIZE, SIZE), np.float32)}
    calls = [(many, batched_inference(embedding, many).run(4))]
    MonitoringReference.measure(signature, calls, None, found).save(folder / REFERENCE)
    seal(folder)
    return folder, {"image": inputs["image"][:1]}


def sessions(folder: Path) -> tuple[Any, Any]:
    """Return a session of the model, and one that also has the embedding."""
    plain, found = open_session(folder / MODEL, threads=1), find_embedding(onnx.load(folder / MODEL), "scores")
    sample: NamedArrays = {"image": np.zeros((1, 3, SIZE, SIZE), np.float32)}
    return plain, open_embedding_session(folder / MODEL, found, plain, sample, [1], threads=1)


def added_by_output(bundle: Path, sample: NamedArrays) -> float:
    """Return the processor time that the embedding adds to a call of one sample in us: medians of calls in turns."""

    def seconds(session: Any) -> float:
        start = time.thread_time()
        session.run(None, sample)
        return time.thread_time() - start

    both = sessions(bundle)
    plain, embedding = zip(*([seconds(one) for one in both] for _ in range(CALLS)), strict=True)
    return 1e6 * (statistics.median(embedding) - statistics.median(plain))


def logged_here(bundle: Path, sample: NamedArrays, folder: Path, inputs: str) -> Costs:
    """Log entries; return the processor time of one with all threads and in this one, in us, and the share lost."""
    opened, metrics = Bundle.open(bundle), Metrics()
    version, signature = opened.digest[:12], opened.contract.signature
    outputs = {"scores": np.zeros((1, CLASSES), np.float32)}
    embedding = np.zeros((1, VALUES), np.float32) if inputs == "embeddings" else None
    log = RequestLog(RequestLogConfig(folder=folder, inputs=inputs), metrics)  # type: ignore[arg-type]
    whole, calls = time.process_time(), 0.0
    for block in range(BLOCKS):
        start = time.thread_time()
        for number in range(BLOCK):
            log.add(f"{block}-{number}", version, signature, sample, outputs, 0.001, embedding)
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


def block(server: Server, process: psutil.Process, requests: int) -> Costs:
    """Send requests one by one; return processor time and median latency of each in us, and the memory in MB."""
    ask = asking(server)
    before = used_seconds(process)
    latencies = [timed(ask) for _ in range(requests)]
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
        here = {kept: logged_here(bundle, sample, Path(name) / "here" / kept, kept) for kept in KEPT.values()}
        output = added_by_output(bundle, sample)
        logs = {way: Path(name) / "logs" / kept for way, kept in KEPT.items()}
        servers = {PLAIN: stack.enter_context(gauntlet(bundle, "small", sample, "--threads", "1"))}
        for way, kept in KEPT.items():
            words = ("--request-log", str(logs[way]), "--log-max-mb", "16", "--log-inputs", kept)
            servers[way] = stack.enter_context(gauntlet(bundle, "small", sample, "--threads", "1", *words))
        processes = {way: process_of(server) for way, server in servers.items()}
        for way, server in servers.items():
            block(server, processes[way], options.requests)  # warm
        rounds = [
            {
                way: block(servers[way], processes[way], options.requests)
                for way in random.sample([*servers], len(servers))
            }
            for _ in range(options.rounds)
        ]
        sizes = [sum(path.stat().st_size for path in log.rglob("*") if path.is_file()) / 1e6 for log in logs.values()]
    return report(options, here, output, rounds, max(sizes))


def report(
    options: argparse.Namespace,
    here: Mapping[str, Costs],
    output: float,
    rounds: list[dict[str, Costs]],
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
        for way in (PLAIN, *KEPT)
    ]
    figures = (
        *(figure for way in KEPT for figure in _figures(way, here[KEPT[way]], rounds)),
        Figure(name="processor time that the embedding as an output adds to a call of the model, before any logging",
               value=round(output, 1), unit="us"),
        Figure(name="size of the largest log at the end", value=round(size_mb, 1), unit="MB", goal="at most 16 MB",
               met=size_mb <= 16),
    )  # fmt: skip
    load = f"load of the machine at the end {psutil.getloadavg()[0]:.1f}"
    conditions = f"{len(rounds)} rounds in turns of {options.requests} requests of a {SIZE}x{SIZE} image, {load}"
    found = Measured("The request log costs a server little", conditions, figures, columns, rows)
    return conclude(found, "monitoring", options.result)


def _figures(way: str, here: Costs, rounds: list[dict[str, Costs]]) -> tuple[Figure, ...]:
    """Return the figures of one server with a log."""
    added = [round(statistics.median(r[way][i] - r[PLAIN][i] for r in rounds), 1) for i in (0, 1)]
    growth = round(rounds[-1][way][2] - rounds[0][way][2], 1)
    return (
        Figure(name=f"{way}: processor time of an entry, the log's thread included", value=round(here[0], 1),
               unit="us", goal="at most 50 us", met=here[0] <= MOST_MICROSECONDS),
        Figure(name=f"{way}: processor time of an entry in the request's own thread", value=round(here[1], 1),
               unit="us"),
        Figure(name=f"{way}: entries lost", value=here[2], goal="0", met=here[2] == 0),
        Figure(name=f"{way}: processor time that it adds to a server, with the machine's noise", value=added[0],
               unit="us"),
        Figure(name=f"{way}: latency that it adds, p50, with the machine's noise", value=added[1], unit="us"),
        Figure(name=f"{way}: growth of the memory from the first round to the last", value=growth, unit="MB",
               goal="at most 5 MB", met=growth <= MOST_GROWTH_MB),
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
