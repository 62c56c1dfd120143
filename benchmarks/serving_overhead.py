"""What serving costs: requests to `gauntlet serve` beside calls of the bare session, and beside other servers.

    python benchmarks/serving_overhead.py [--model FILE.onnx] [--rounds 10] [--litserve PYTHON] [--mlserver PYTHON]

Without `--model`, a ResNet-18 is trained on digits. In each round every way runs once, in an order that changes: single
requests one after the other on one connection, then many connections at once for the throughput. The client is in this
process and shares the cores. Prints medians over the rounds; what serving adds is the difference within a round.
"""

import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import onnx
import psutil
from networks import trained
from results import Figure, Measured, conclude, script_parser
from serving_peers import Server, gauntlet, litserve, mlserver

from gauntlet.bundle.bundle import CONTRACT, GOLDEN, MODEL, seal
from gauntlet.bundle.contract import BatchLatency, Contract
from gauntlet.core.arrays import NamedArrays
from gauntlet.core.signature import Signature
from gauntlet.runtime.batched_inference import batched_inference
from gauntlet.runtime.session import open_session
from serving.stages.serve.measurement import Connection

CONNECTIONS = 16
SINGLE = 300
"""Requests of a block, one after the other."""
LOAD_S, TIMEOUT_S = 3.0, 60.0
BATCHES = (1, 4, 8, 16)
GOALS = {"p50": 0.5, "p99": 1.5}
SHARE = 0.95
FACTOR = 2.0
BARE, OURS = "bare session.run", "gauntlet serve"


def given_or_trained(model: Path | None) -> Path:
    """Return the model that is given, or else a ResNet-18."""
    network = None if model else trained("resnet18")
    return (model or network.store.path(network.kept.model)).resolve()  # type: ignore[union-attr]


def make_bundle(model: Path, folder: Path) -> tuple[Path, NamedArrays]:
    """Seal a bundle of a model with random golden inputs, and latencies as a race would measure them."""
    signature = Signature.read(onnx.load(model))
    assert signature is not None
    rng = np.random.default_rng(0)
    shape = [axis if isinstance(axis, int) else 1 for axis in signature.inputs[0].shape[1:]]
    inputs: NamedArrays = {signature.inputs[0].name: rng.standard_normal((32, *shape)).astype(np.float32)}
    session = open_session(model)
    outputs = batched_inference(session, inputs).run(8)
    latencies = []
    for batch in BATCHES:
        feed = {name: array[:batch] for name, array in inputs.items()}
        times = [timed(lambda feed=feed: session.run(None, feed)) for _ in range(8)]
        latencies.append(BatchLatency(batch=batch, median_ms=1000 * statistics.median(times)))
    made_by = {"name": "resnet18", "run_id": "benchmark", "candidate": "fp32", "target": "ort-cpu"}
    contract = Contract(**made_by, signature=signature, latencies=tuple(latencies))
    folder.mkdir()
    (folder / MODEL).write_bytes(model.read_bytes())
    (folder / CONTRACT).write_text(contract.model_dump_json())
    parts = {"inputs": inputs, "outputs": outputs}
    np.savez(folder / GOLDEN, **{f"{part}/{k}": v for part, arrays in parts.items() for k, v in arrays.items()})
    seal(folder)
    return folder, {name: array[:1] for name, array in inputs.items()}


def timed(call: Callable[[], object]) -> float:
    """Return the seconds of a call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def asking(server: Server) -> Callable[[], None]:
    """Return a function that sends the server's request on a connection of its own."""
    connection = Connection(server.port, TIMEOUT_S)

    def ask() -> None:
        if (status := connection.send(server.request)) != 200:
            raise SystemExit(f"refused: status {status}")

    return ask


def saturated(server: Server) -> float:
    """Return requests per second of many connections at once."""
    connections = [asking(server) for _ in range(CONNECTIONS)]
    counts = [0] * CONNECTIONS
    end = time.perf_counter() + LOAD_S

    def work(number: int) -> None:
        while time.perf_counter() < end:
            connections[number]()
            counts[number] += 1

    threads = [threading.Thread(target=work, args=(number,)) for number in range(CONNECTIONS)]
    seconds = timed(lambda: [[thread.start() for thread in threads], [thread.join() for thread in threads]])
    return sum(counts) / seconds


def bare_throughput(session: object, sample: NamedArrays, batch: int) -> float:
    """Return rows per second of the session alone at the server's batch size."""
    feed = {name: np.repeat(array, batch, axis=0) for name, array in sample.items()}
    calls, start = 0, time.perf_counter()
    while time.perf_counter() - start < LOAD_S:
        session.run(None, feed)  # type: ignore[attr-defined]
        calls += 1
    return calls * batch / (time.perf_counter() - start)


Round = dict[str, tuple[float, float, float]]
"""Way -> p50 and p99 of single requests in milliseconds, and rows per second under load."""


def one_round(session: object, sample: NamedArrays, servers: Mapping[str, Server], batch: int) -> Round:
    """Measure every way once."""
    figures: Round = {}
    for way in random.sample([BARE, *servers], 1 + len(servers)):
        if way == BARE:
            call: Callable[[], object] = lambda: session.run(None, sample)  # type: ignore[attr-defined] # noqa: E731
        else:
            call = asking(servers[way])
        for _ in range(5):
            call()
        times = [1000 * timed(call) for _ in range(SINGLE)]
        rate = bare_throughput(session, sample, batch) if way == BARE else saturated(servers[way])
        figures[way] = (statistics.median(times), float(np.quantile(times, 0.99)), rate)
    return figures


def main() -> int:
    """Measure in turns and print the table; 1 when a goal is missed."""
    parser = script_parser(__doc__)
    parser.add_argument("--model", type=Path, help="an exported model with a signature; by default a ResNet-18")
    parser.add_argument("--rounds", type=int, default=10)
    for peer in ("litserve", "mlserver"):
        words = f"of an environment with {peer} and onnxruntime"
        parser.add_argument(f"--{peer}", type=Path, metavar="PYTHON", help=words)
    options = parser.parse_args()
    model = given_or_trained(options.model)
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        bundle, sample = make_bundle(model, folder / "bundle")
        contract = Contract.model_validate_json((bundle / CONTRACT).read_bytes())
        batch = max(contract.latencies, key=lambda entry: entry.batch / entry.median_ms).batch
        servers = {OURS: stack.enter_context(gauntlet(bundle, contract.name, sample, "--deadline-ms", "10000"))}
        for title, start, python in (
            ("LitServe", litserve, options.litserve),
            ("MLServer", mlserver, options.mlserver),
        ):
            if python is not None:
                (folder / title).mkdir()
                servers[title] = stack.enter_context(start(python.absolute(), model, sample, folder / title))
        session = open_session(model)
        rounds = [one_round(session, sample, servers, batch) for _ in range(options.rounds)]
    return conclude(measured(rounds, batch), "serving", options.result)


def measured(rounds: list[Round], batch: int) -> Measured:
    """Return the medians over the rounds."""
    digits = (2, 2, 0)
    rows = [
        (way, *(f"{statistics.median(r[way][i] for r in rounds):.{d}f}" for i, d in enumerate(digits)))
        for way in rounds[0]
    ]
    figures = []
    for i, (name, goal) in enumerate(GOALS.items()):
        added = round(statistics.median(r[OURS][i] - r[BARE][i] for r in rounds), 2)
        figures.append(Figure.at_most(f"{name} added to a bare call", added, goal, "ms"))
    share = round(statistics.median(r[OURS][2] / r[BARE][2] for r in rounds), 3)
    figures.append(Figure.at_least("throughput, share of the bare session's", share, SHARE))
    for peer in sorted(rounds[0].keys() - {BARE, OURS}):
        factor = round(statistics.median(r[OURS][2] / r[peer][2] for r in rounds), 2)
        figure = Figure.at_least(f"requests per second over {peer}'s", factor, FACTOR, "x")
        figures.append(figure if peer == "MLServer" else figure.replace(goal="", met=None))
    load = f"load of the machine at the end {psutil.getloadavg()[0]:.1f}"
    return Measured(
        claim="Serving adds little to the model's own time",
        conditions=f"ResNet-18, {len(rounds)} rounds in turns, binary tensors, up to {batch} rows a call, {load}",
        figures=tuple(figures),
        columns=("way", "p50, ms", "p99, ms", f"rows/s, {CONNECTIONS} connections"),
        rows=sorted(rows),
    )


if __name__ == "__main__":
    sys.exit(main())
