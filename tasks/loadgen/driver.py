"""The process in which LoadGen runs: it asks, a session answers, and the result is in LoadGen's own log files."""

import importlib
import queue
import threading
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from tasks.frozen import JsonObject
from tasks.runtime.calls import Calls, calls, tensor_outputs

WARM_UP_CALLS = 3
TIMED_CALLS = 10
MOST_IN_MEMORY = 1024


@dataclass(frozen=True)
class Order:
    """What LoadGen is to do."""

    scenario: str
    accuracy: bool
    min_duration_ms: int
    min_queries: int
    batch: int
    target_latency_ms: float
    target_qps: float | None
    expected_latency_ms: float | None
    threads: int
    engine: JsonObject
    """Options of the target, as a worker gets them."""


class Responder:
    """Answers LoadGen's samples with one session."""

    def __init__(self, loadgen: Any, prepared: Calls, batch: int, *, keep_answers: bool) -> None:
        self._loadgen, self._calls, self._keep = loadgen, prepared, keep_answers
        self._names = tensor_outputs(prepared.session)[:1]
        self.batch = 1 if prepared.whole else prepared.batch(batch)
        self._waiting: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def call(self, indices: Sequence[int]) -> npt.NDArray[np.generic]:
        """Return the first output for some samples, shape (n, ...)."""
        prepared = self._calls
        if prepared.whole:
            answer = prepared.session.run(self._names, prepared.feed(indices[0], 1))[0]
            return np.asarray(answer)[None]
        # A fixed batch is filled up with the last sample.
        wanted = [*indices, *[indices[-1]] * ((prepared.fixed_batch or len(indices)) - len(indices))]
        feed = {name: samples[wanted] for name, samples in prepared.samples.items()}
        answer = np.asarray(prepared.session.run(self._names, feed)[0])
        return answer[: len(indices)]

    def answer(self, samples: Sequence[Any]) -> None:
        """Answer some samples at once, `batch` in a call, and tell LoadGen after each call."""
        for start in range(0, len(samples), self.batch):
            part = samples[start : start + self.batch]
            values = self.call([sample.index for sample in part])
            buffers = [array("B", np.ascontiguousarray(v).tobytes()) if self._keep else array("B") for v in values]
            places = [buffer.buffer_info() if self._keep else (0, 0) for buffer in buffers]
            response = self._loadgen.QuerySampleResponse
            pairs = zip(part, places, strict=True)
            self._loadgen.QuerySamplesComplete([response(s.id, place, size) for s, (place, size) in pairs])

    def enqueue(self, samples: Sequence[Any]) -> None:
        """Take samples and come back at once: in the Server scenario others follow before these are answered."""
        for sample in samples:
            self._waiting.put(sample)

    def serve(self) -> None:
        """Answer what waits, as many samples in a call as there are and fit, until None comes."""
        while (sample := self._waiting.get()) is not None:
            part = [sample]
            while len(part) < self.batch and not self._waiting.empty():
                if (sample := self._waiting.get()) is None:
                    self._waiting.put(None)
                    break
                part.append(sample)
            self.answer(part)

    def stop(self) -> None:
        """Let `serve` end."""
        self._waiting.put(None)


def drive(order: Order, model: Path, inputs: Path, folder: Path) -> None:
    """Run one scenario; LoadGen writes its logs into the folder."""
    import mlperf_loadgen as lg

    with np.load(inputs, allow_pickle=False) as file:
        samples = {name: file[name] for name in file.files}
    prepared = calls(_engine(order, model), samples)
    responder = Responder(lg, prepared, _batch(order), keep_answers=order.accuracy)
    latency_s = _latency_s(responder)
    expected_s = order.expected_latency_ms / 1000 if order.expected_latency_ms else latency_s
    settings = _settings(lg, order, responder.batch, expected_s)
    logs = lg.LogSettings()
    logs.log_output.outdir = str(folder)
    logs.log_output.copy_summary_to_stdout = False
    logs.enable_trace = False  # nobody reads it, and writing it takes time from the calls
    crowd = order.scenario == "Server"
    thread = threading.Thread(target=responder.serve)
    if crowd:
        thread.start()
    ask = responder.enqueue if crowd else responder.answer
    sut = lg.ConstructSUT(ask, lambda: None)
    qsl = lg.ConstructQSL(len(prepared), min(len(prepared), MOST_IN_MEMORY), lambda _: None, lambda _: None)
    try:
        lg.StartTestWithLogSettings(sut, qsl, settings, logs, "")
    finally:
        if crowd:
            responder.stop()
            thread.join()
        lg.DestroyQSL(qsl)
        lg.DestroySUT(sut)


def _engine(order: Order, model: Path) -> Any:
    module = importlib.import_module(str(order.engine["engine"]))
    return module.Loaded(model, order.threads, order.engine)


def _batch(order: Order) -> int:
    return 1 if order.scenario == "SingleStream" else order.batch


def _latency_s(responder: Responder) -> float:
    """Return the median time of a full call, in seconds."""
    taken = []
    for _ in range(WARM_UP_CALLS + TIMED_CALLS):
        start = perf_counter()
        responder.call([0] * responder.batch)
        taken.append(perf_counter() - start)
    return median(taken[WARM_UP_CALLS:])


def _settings(lg: Any, order: Order, batch: int, expected_s: float) -> Any:
    """Return LoadGen's settings. It prepares queries for the expected speed, and a little more; half is added here."""
    settings = lg.TestSettings()
    settings.scenario = getattr(lg.TestScenario, order.scenario)
    settings.mode = lg.TestMode.AccuracyOnly if order.accuracy else lg.TestMode.PerformanceOnly
    settings.min_duration_ms = order.min_duration_ms
    settings.min_query_count = order.min_queries
    fast_ns = max(1, round(expected_s * 1e9 / (1.0 if order.expected_latency_ms else 1.5)))
    settings.single_stream_expected_latency_ns = fast_ns
    settings.multi_stream_expected_latency_ns = fast_ns
    settings.multi_stream_samples_per_query = batch
    settings.offline_expected_qps = batch / (fast_ns / 1e9)
    settings.server_target_qps = order.target_qps or 0.5 / expected_s
    settings.server_target_latency_ns = round(order.target_latency_ms * 1e6)
    return settings
