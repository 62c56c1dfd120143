"""What `gauntlet serve` does at twice its capacity: the latency of what it admits, its goodput and its memory.

    python benchmarks/serving_overload.py [--model FILE.onnx] [--minutes 10] [--objective-ms 250] [--result FILE.json]

Without `--model`, a ResNet-18 is trained on digits. Each minute is a round: first the capacity, by connections of which
each sends a request once it has the last response; then twice as many requests a second, at random times, whatever the
responses. The server's deadline is the objective. A latency counts from when the request was due, and the client shares
the cores.
"""

import argparse
import asyncio
import random
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import numpy as np
import psutil
import uvloop
from results import Figure, Measured, conclude, script_parser
from scipy.stats import linregress, t
from serving_overhead import CONNECTIONS, given_or_trained, make_bundle
from serving_peers import Server, gauntlet

from gauntlet.bundle.bundle import CONTRACT
from gauntlet.bundle.contract import Contract
from serving.stages.serve.measurement import HOST, MAX_IDLE_S

ROUND_S, CAPACITY_S = 60.0, 10.0
LOAD = 2.0
GOODPUT = 0.9
GROWTH = 0.02
WARM_UP = 0.1
BINS = 10
SAMPLE_S = 0.5
OK, REFUSED = 200, 429


class Line(asyncio.Protocol):
    """One connection, with one request at a time."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.used_at = perf_counter()
        self._received = b""
        self._status: asyncio.Future[int] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin."""
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """Read a part of a response."""
        self._received += data
        head, end, body = self._received.partition(b"\r\n\r\n")
        if end and len(body) >= int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]):
            assert self._status is not None
            self._received = b""
            self._status.set_result(int(head.split(b" ", 2)[1]))

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the request that is under way."""
        if self._status is not None and not self._status.done():
            self._status.set_exception(ConnectionResetError("the server closed the connection"))

    async def send(self, request: bytes) -> int:
        """Send a request and return the status of its response."""
        self._status = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        status = await self._status
        self.used_at = perf_counter()
        return status


class Client:
    """Sends a server's request on as many connections as are needed."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._idle: list[Line] = []

    async def send(self) -> int:
        """Return the status."""
        line = await self._line()
        status = await line.send(self._server.request)
        self._idle.append(line)
        return status

    async def _line(self) -> Line:
        while self._idle:
            line = self._idle.pop()
            if perf_counter() - line.used_at < MAX_IDLE_S and not line.transport.is_closing():
                return line
            line.transport.close()
        _, line = await asyncio.get_running_loop().create_connection(Line, HOST, self._server.port)
        return line


@dataclass(frozen=True)
class Round:
    """What a minute showed; rates are requests a second, latencies seconds of the admitted."""

    capacity: float
    seconds: float
    latencies: Sequence[float]
    refused: int

    def share(self, objective_s: float) -> float:
        """Return the goodput as a share of the capacity."""
        return sum(latency <= objective_s for latency in self.latencies) / self.seconds / self.capacity


async def capacity(client: Client, seconds: float) -> float:
    """Return requests per second of connections that never pause."""
    start = perf_counter()

    async def work() -> int:
        count = 0
        while perf_counter() - start < seconds:
            count += await client.send() == OK
        return count

    counts = await asyncio.gather(*(work() for _ in range(CONNECTIONS)))
    return sum(counts) / (perf_counter() - start)


async def overload(client: Client, rate: float, seconds: float) -> tuple[Counter[int], list[float], float]:
    """Send requests at a rate; return the statuses, the latencies of the admitted, and the seconds until the last."""
    latencies: list[float] = []
    statuses: Counter[int] = Counter()

    async def request(due: float) -> None:
        status = await client.send()
        statuses[status] += 1
        if status == OK:
            latencies.append(perf_counter() - due)

    start = due = perf_counter()
    async with asyncio.TaskGroup() as tasks:
        while (due := due + random.expovariate(rate)) < start + seconds:
            await asyncio.sleep(max(0.0, due - perf_counter()))
            tasks.create_task(request(due))
    if set(statuses) - {OK, REFUSED}:
        raise SystemExit(f"other statuses than {OK} and {REFUSED}: {dict(statuses)}")
    return statuses, latencies, perf_counter() - start


async def rounds_at(server: Server, minutes: float) -> tuple[list[Round], list[tuple[float, float]]]:
    """Return the rounds, and the server's memory over time: minutes and MB."""
    client, process, memory = Client(server), psutil.Process(server.pid), list[tuple[float, float]]()
    rounds: list[Round] = []
    start = perf_counter()

    async def watch() -> None:
        while True:
            memory.append(((perf_counter() - start) / 60, process.memory_info().rss / 1e6))
            await asyncio.sleep(SAMPLE_S)

    watching = asyncio.create_task(watch())
    await capacity(client, 2)
    for number in range(max(1, round(minutes * 60 / ROUND_S))):
        most = await capacity(client, CAPACITY_S)
        statuses, latencies, seconds = await overload(client, LOAD * most, ROUND_S - CAPACITY_S)
        rounds.append(Round(most, seconds, latencies, statuses[REFUSED]))
        print(f"round {number + 1}: {most:.0f}/s, {dict(statuses)}, {memory[-1][1]:.1f} MB", flush=True)
    watching.cancel()
    return rounds, memory


def growth(memory: Sequence[tuple[float, float]]) -> tuple[float, float, float]:
    """Return the slope in MB a minute and its 95 % interval, from means of equal parts after a warm-up.

    Samples that follow each other are alike; means of long parts are nearly independent.
    """
    parts = np.array_split(np.array(memory)[round(WARM_UP * len(memory)) :], BINS)
    fit = linregress(*np.array([part.mean(axis=0) for part in parts]).T)
    half = fit.stderr * t.ppf(0.975, BINS - 2)
    return fit.slope, fit.slope - half, fit.slope + half


def main() -> int:
    """Measure and print; return 1 where a goal is missed."""
    parser = script_parser(__doc__)
    parser.add_argument("--model", type=Path, help="an exported model with a signature; by default a ResNet-18")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--objective-ms", type=float, default=250)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        bundle, sample = make_bundle(given_or_trained(options.model), Path(name) / "bundle")
        contract = Contract.model_validate_json((bundle / CONTRACT).read_bytes())
        with gauntlet(bundle, contract.name, sample, "--deadline-ms", f"{options.objective_ms:g}") as server:
            rounds, memory = uvloop.run(rounds_at(server, options.minutes))
    return report(options, rounds, memory)


def figures_of(objective_ms: float, rounds: list[Round], memory: list[tuple[float, float]]) -> tuple[Figure, ...]:
    """Return the numbers that the claim rests on."""
    admitted = np.concatenate([np.array(lap.latencies) for lap in rounds])
    p99_ms = round(1000 * float(np.quantile(admitted, 0.99)), 1)
    share = round(statistics.median(lap.share(objective_ms / 1000) for lap in rounds), 3)
    slope, low, high = growth(memory)
    size, minutes = statistics.mean(mb for _, mb in memory), memory[-1][0]
    return (
        Figure.at_most("p99 of the admitted", p99_ms, objective_ms, "ms"),
        Figure.at_least("goodput, share of the capacity", share, GOODPUT),
        Figure(name=f"growth of the server's {size:.0f} MB", value=round(slope, 3), low=round(low, 3),
               high=round(high, 3), unit="MB a minute", goal=f"at most {GROWTH:.0%} in these {minutes:.0f} minutes",
               met=high * minutes <= GROWTH * size),
    )  # fmt: skip


def report(options: argparse.Namespace, rounds: list[Round], memory: list[tuple[float, float]]) -> int:
    """Print the rounds and the figures; return 1 where a goal is missed."""
    columns = ("round", "capacity, requests/s", "goodput, share", "refused, share", "p50, ms", "p99, ms")
    rows = []
    for number, lap in enumerate(rounds, 1):
        p50, p99 = 1000 * np.quantile(lap.latencies, (0.5, 0.99))
        refused = lap.refused / (lap.refused + len(lap.latencies))
        share = lap.share(options.objective_ms / 1000)
        rows.append((str(number), f"{lap.capacity:.0f}", f"{share:.3f}", f"{refused:.2f}", f"{p50:.0f}", f"{p99:.0f}"))
    network = options.model.stem if options.model else "ResNet-18"
    load = f"load of the machine at the end {psutil.getloadavg()[0]:.0f}"
    claim = "At twice its capacity the server answers within its objective and stays as large as it was"
    conditions = f"{network}, requests of one row in binary, {LOAD:g} times the capacity of that minute, {load}"
    measured = Measured(claim, conditions, figures_of(options.objective_ms, rounds, memory), columns, rows)
    return conclude(measured, "serving", options.result)


if __name__ == "__main__":
    sys.exit(main())
