"""Measure a running server from a process of its own: what it adds to a call, then LoadGen's Server scenario."""

import gc
import json
import math
import random
import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import numpy.typing as npt

from gauntlet.bundle.bundle import Bundle
from gauntlet.bundle.predictor import Predictor
from gauntlet.core.errors import StageError
from gauntlet.race.confidence import median_shift_interval
from gauntlet.runtime.batched_inference import BatchedInference, batched_inference, tensor_output_names
from gauntlet.runtime.timing import time_calls
from serving.open_inference import binary_request
from serving.stages.loadgen.driver import Scenario, start_test, test_settings
from serving.stages.serve.config import ServingCost

TURNS = 12
TURN_S, MIN_CALLS, MAX_CALLS = 0.5, 10, 100
"""Of one way in a turn: as many calls as fit the time, within the two limits."""
WARM_UP_CALLS = 5
MIN_CONNECTIONS, MAX_CONNECTIONS = 8, 256
STACK_BYTES = 1 << 19
"""Of each of the client's threads, which count towards its memory limit."""
OK = 200


@dataclass(frozen=True)
class ServeJob:
    """The server to measure, and the load."""

    port: int
    bundle: Path
    scenario: Scenario
    timeout_s: float

    @property
    def connections(self) -> int:
        """Twice as many as requests in flight when the objective is just kept (Little's law); others wait for one."""
        in_flight = (self.scenario.target_qps or 0) * self.scenario.target_latency_ms / 1000
        return min(MAX_CONNECTIONS, max(MIN_CONNECTIONS, math.ceil(2 * in_flight)))


@dataclass(frozen=True)
class LoadResult:
    """What LoadGen's requests met, in their order; latencies of refused and failed ones are infinite."""

    latencies_ms: npt.NDArray[np.float64]
    client_delays_ms: npt.NDArray[np.float64]
    refused: int
    failed: int


def measure(job: ServeJob, folder: Path) -> tuple[ServingCost, LoadResult]:
    """Measure the server with the bundle's golden inputs; LoadGen writes its logs into the folder."""
    threading.stack_size(STACK_BYTES)
    predictor = Predictor(Bundle.open(job.bundle))
    inference = batched_inference(predictor.session, predictor.bundle.golden().inputs)
    path = f"/v2/models/{predictor.contract.name}/infer"
    starts = range(0, len(inference), inference.batch(1))
    requests = [http_request(path, *binary_request(inference.feed(start, 1))) for start in starts]
    connection = Connection(job.port, job.timeout_s)
    cost = serving_cost(inference, lambda number: _require_ok(connection.send(requests[number % len(requests)])))
    connection.close()
    del predictor, inference  # the session's threads end
    gc.collect()
    return cost, run_server_scenario(job, requests, folder)


def serving_cost(inference: BatchedInference, ask: Callable[[int], object]) -> ServingCost:
    """Time calls of the session and requests, `ask(number)`, in turns whose order is drawn."""
    names = tensor_output_names(inference.session)
    feeds = [inference.feed(start, 1) for start in range(0, len(inference), inference.batch(1))]
    ways: dict[str, Callable[[int], object]] = {
        "bare": lambda number: inference.session.run(names, feeds[number % len(feeds)]),
        "served": ask,
    }
    usual_ms = float(np.median(_times_ms(ways["bare"], WARM_UP_CALLS)))
    calls = int(np.clip(1000 * TURN_S / usual_ms, MIN_CALLS, MAX_CALLS))
    times: dict[str, list[list[float]]] = {way: [] for way in ways}
    order = random.Random(0)
    for _ in range(TURNS):
        for way in order.sample(list(ways), len(ways)):
            _times_ms(ways[way], WARM_UP_CALLS)
            times[way].append(_times_ms(ways[way], calls))
    bare, served = np.array(times["bare"]), np.array(times["served"])
    added, low, high = median_shift_interval(np.median(served, axis=1) - np.median(bare, axis=1))
    bare_p99, served_p99 = (float(np.quantile(values, 0.99)) for values in (bare, served))
    return ServingCost(
        calls=bare.size,
        bare_p50_ms=float(np.median(bare)),
        bare_p99_ms=bare_p99,
        served_p50_ms=float(np.median(served)),
        served_p99_ms=served_p99,
        added_p50_ms=added,
        added_p50_low_ms=low,
        added_p50_high_ms=high,
        added_p99_ms=served_p99 - bare_p99,
    )


def _times_ms(call: Callable[[int], object], count: int) -> list[float]:
    numbers = iter(range(count + 1))
    return time_calls(lambda: call(next(numbers)), least=count)[0]


def _require_ok(status: int) -> None:
    if status != OK:
        raise StageError(f"a single request of a golden input got status {status} from the server")


class Client:
    """Sends LoadGen's queries when they arrive, whether or not earlier ones are done."""

    def __init__(self, loadgen: Any, requests: Sequence[bytes], job: ServeJob) -> None:
        self.statuses: list[int] = []
        """HTTP status by query; 0 where there was no response."""
        self._loadgen, self._requests, self._job = loadgen, requests, job
        self._threads = ThreadPoolExecutor(job.connections, thread_name_prefix="client")
        self._own = threading.local()

    def issue(self, samples: Sequence[Any]) -> None:
        """Start requests and return at once."""
        for sample in samples:
            number = len(self.statuses)
            self.statuses.append(0)
            self._threads.submit(self._ask, number, sample.id, sample.index)

    def _ask(self, number: int, query: int, index: int) -> None:
        if not hasattr(self._own, "connection"):
            self._own.connection = Connection(self._job.port, self._job.timeout_s)
        try:
            self.statuses[number] = self._own.connection.send(self._requests[index])
        except OSError:
            self._own.connection.close()
        self._loadgen.QuerySamplesComplete([self._loadgen.QuerySampleResponse(query, 0, 0)])


def run_server_scenario(job: ServeJob, requests: Sequence[bytes], folder: Path) -> LoadResult:
    """Let LoadGen send the requests, drawn at random, at random times.

    It counts from the scheduled arrival, so a client or server that falls behind is not spared.
    """
    import mlperf_loadgen as lg

    client = Client(lg, requests, job)
    settings = test_settings(lg, job.scenario, 1, job.scenario.target_latency_ms)
    start_test(lg, settings, client.issue, len(requests), folder, trace=True)
    latencies, delays = read_trace(folder)
    if len(latencies) != len(client.statuses):
        raise StageError(f"LoadGen's trace has {len(latencies)} queries, {len(client.statuses)} were sent")
    statuses = np.array(client.statuses)
    latencies[statuses != OK] = math.inf
    failed = int((statuses == 0).sum())
    return LoadResult(latencies, delays, int((statuses != OK).sum()) - failed, failed)


def read_trace(folder: Path) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return from LoadGen's trace each query's latency, and how late it was issued, in milliseconds.

    The file is in the Trace Event Format of Chromium's about:tracing, one event a line.
    """
    by_query: dict[int, tuple[float, float]] = {}
    for line in (folder / "mlperf_log_trace.json").read_text().splitlines():
        if '"complete_ns"' in line:
            times = json.loads(line.strip().rstrip(","))["args"]
            by_query[times["query_seq"]] = (times["complete_ns"] / 1e6, times["issue_start_ns"] / 1e6)
    pairs = np.array([by_query[number] for number in sorted(by_query)], np.float64).reshape(-1, 2)
    return pairs[:, 0].copy(), pairs[:, 1].copy()


HOST = "127.0.0.1"
RECEIVED_BYTES = 1 << 16
MAX_IDLE_S = 1.0
"""A server closes idle connections, after 5 s for `gauntlet serve`; a request on one of those would fail."""


def http_request(path: str, body: bytes, headers: dict[str, str]) -> bytes:
    """Return a whole POST request."""
    lines = {"host": "localhost", "content-length": str(len(body)), **headers}
    text = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"POST {path} HTTP/1.1\r\n{text}\r\n".encode() + body


class Connection:
    """One connection to a port of the loopback, which is kept open from request to request."""

    def __init__(self, port: int, timeout_s: float) -> None:
        self._port, self._timeout_s = port, timeout_s
        self._socket: socket.socket | None = None
        self._used_at = 0.0

    def send(self, request: bytes) -> int:
        """Send a request, read the whole response, and return its status; `OSError` when there is none."""
        if monotonic() - self._used_at > MAX_IDLE_S:
            self.close()
        if self._socket is None:
            self._socket = socket.create_connection((HOST, self._port), self._timeout_s)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        status = self._exchange(self._socket, request)
        self._used_at = monotonic()
        return status

    def close(self) -> None:
        """Close the connection; the next request opens another one."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    @staticmethod
    def _exchange(connected: socket.socket, request: bytes) -> int:
        connected.sendall(request)
        received = b""
        while b"\r\n\r\n" not in received:
            received += _some(connected)
        head, _, body = received.partition(b"\r\n\r\n")
        missing = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]) - len(body)
        while missing > 0:
            missing -= len(_some(connected))
        return int(head.split(b" ", 2)[1])


def _some(connected: socket.socket) -> bytes:
    data = connected.recv(RECEIVED_BYTES)
    if not data:
        raise ConnectionResetError("the server closed the connection")
    return data
