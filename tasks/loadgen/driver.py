"""The process in which LoadGen runs: it asks, a session answers, and the result is in LoadGen's own log files."""

import importlib
import queue
import threading
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from gauntlet.core.frozen import Frozen, JsonObject
from gauntlet.runtime.batched_inference import BatchedInference, batched_inference, tensor_output_names
from gauntlet.runtime.timing import time_calls

WARM_UP_CALLS = 3
TIMED_CALLS = 10
MOST_IN_MEMORY = 1024
USUAL_QUERIES = {"SingleStream": 100, "MultiStream": 700, "Server": 1000, "Offline": 1}
"""LoadGen's early stopping asks for 64 to be sure of a 90th percentile and 662 of a 99th, more with slow ones."""


class Scenario(Frozen):
    """One way of asking, for so long."""

    scenario: Literal["SingleStream", "MultiStream", "Server", "Offline"]
    mode: Literal["performance", "accuracy"] = "performance"
    min_duration_s: float = Field(2, gt=0, description="a shorter run is INVALID; a submission needs 600")
    min_queries: int | None = Field(
        None, ge=1, description="fewer are INVALID; by default as many as LoadGen needs to be sure of its percentile"
    )
    batch: int = Field(8, ge=1, description="samples a call, at most; SingleStream always asks for one")
    target_latency_ms: float = Field(100, gt=0, description="Server: 99 % of the answers must be there by then")
    target_qps: float | None = Field(
        None, gt=0, description="Server: queries a second; by default, half of what single calls could serve"
    )
    expected_latency_ms: float | None = Field(
        None, gt=0, description="of a call; LoadGen prepares its queries by it. By default it is measured first"
    )
    threads: int | None = Field(
        None,
        ge=1,
        description="of the session, where it has no number of its own; by default, all that the process may use",
    )
    min_accuracy: float = Field(0.0, ge=0, le=1, description="accuracy mode: least share of right answers")
    timeout_s: float = Field(900, gt=0, description="LoadGen may hang; after this long it is ended")
    memory_gb: float = Field(8, gt=0, description="limit of the process")


@dataclass(frozen=True)
class LoadGenJob:
    """What LoadGen is to do."""

    scenario: Scenario
    threads: int
    engine: JsonObject
    """Options of the target, as a worker gets them."""


class SystemUnderTest:
    """Answers LoadGen's samples with one session."""

    def __init__(self, loadgen: Any, prepared: BatchedInference, batch: int, *, keep_answers: bool) -> None:
        self._loadgen, self._calls, self._keep = loadgen, prepared, keep_answers
        self._names = tensor_output_names(prepared.session)[:1]
        self.batch = 1 if prepared.one_sample_per_call else prepared.batch(batch)
        self._waiting: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def call(self, indices: Sequence[int]) -> npt.NDArray[np.generic]:
        """Return the first output for some samples, shape (n, ...)."""
        prepared = self._calls
        if prepared.one_sample_per_call:
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


def run_scenario(order: LoadGenJob, model: Path, inputs: Path, folder: Path) -> None:
    """Run one scenario; LoadGen writes its logs into the folder."""
    import mlperf_loadgen as lg

    with np.load(inputs, allow_pickle=False) as file:
        samples = {name: file[name] for name in file.files}
    asked = order.scenario
    prepared = batched_inference(_engine(order, model), samples)
    responder = SystemUnderTest(lg, prepared, _batch(asked), keep_answers=asked.mode == "accuracy")
    latency_s = _latency_s(responder)
    expected_s = asked.expected_latency_ms / 1000 if asked.expected_latency_ms else latency_s
    settings = _settings(lg, asked, responder.batch, expected_s)
    logs = lg.LogSettings()
    logs.log_output.outdir = str(folder)
    logs.log_output.copy_summary_to_stdout = False
    logs.enable_trace = False  # nobody reads it, and writing it takes time from the calls
    crowd = asked.scenario == "Server"
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


def _engine(order: LoadGenJob, model: Path) -> Any:
    module = importlib.import_module(str(order.engine["engine"]))
    return module.load_engine(model, order.threads, order.engine)


def _batch(asked: Scenario) -> int:
    return 1 if asked.scenario == "SingleStream" else asked.batch


def _latency_s(responder: SystemUnderTest) -> float:
    """Return the median time of a full call, in seconds."""
    samples_ms, _ = time_calls(partial(responder.call, [0] * responder.batch), least=WARM_UP_CALLS + TIMED_CALLS)
    return median(samples_ms[WARM_UP_CALLS:]) / 1e3


def _settings(lg: Any, asked: Scenario, batch: int, expected_s: float) -> Any:
    """Return LoadGen's settings. It prepares queries for the expected speed, and a little more; half is added here."""
    settings = lg.TestSettings()
    settings.scenario = getattr(lg.TestScenario, asked.scenario)
    settings.mode = lg.TestMode.AccuracyOnly if asked.mode == "accuracy" else lg.TestMode.PerformanceOnly
    settings.min_duration_ms = round(asked.min_duration_s * 1000)
    settings.min_query_count = asked.min_queries or USUAL_QUERIES[asked.scenario]
    fast_ns = max(1, round(expected_s * 1e9 / (1.0 if asked.expected_latency_ms else 1.5)))
    settings.single_stream_expected_latency_ns = fast_ns
    settings.multi_stream_expected_latency_ns = fast_ns
    settings.multi_stream_samples_per_query = batch
    settings.offline_expected_qps = batch / (fast_ns / 1e9)
    settings.server_target_qps = asked.target_qps or 0.5 / expected_s
    settings.server_target_latency_ns = round(asked.target_latency_ms * 1e6)
    return settings
