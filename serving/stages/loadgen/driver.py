"""Run LoadGen in this process: it sends samples to a session, and writes the result into its own log files."""

import importlib
import queue
import threading
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from gauntlet.core.arrays import read_arrays
from gauntlet.core.frozen import Frozen, JsonObject
from gauntlet.runtime.batched_inference import BatchedInference, batched_inference, tensor_output_names
from gauntlet.runtime.timing import time_calls

WARM_UP_CALLS = 3
TIMED_CALLS = 10
MEMORY_BYTES = 8_000_000_000
"""Of the process that runs LoadGen and a session."""
MAX_IN_MEMORY = 1024
DEFAULT_QUERIES = {"SingleStream": 100, "MultiStream": 700, "Server": 1000, "Offline": 1}
"""LoadGen's early stopping needs 64 for a 90th percentile and 662 for a 99th, and more with slow ones."""


class Scenario(Frozen):
    """One scenario of LoadGen, and its settings."""

    scenario: Literal["SingleStream", "MultiStream", "Server", "Offline"]
    mode: Literal["performance", "accuracy"] = "performance"
    min_duration_s: float = Field(2, gt=0, description="a shorter run is INVALID; a submission needs 600")
    min_queries: int | None = Field(None, ge=1, description="fewer are INVALID; default: enough for the percentile")
    batch: int = Field(8, ge=1, description="most samples of a call; SingleStream always has one")
    target_latency_ms: float = Field(100, gt=0, description="Server: latency that 99 % of the queries must keep")
    target_qps: float | None = Field(None, gt=0, description="Server: queries/s; default: half of single calls' rate")
    threads: int | None = Field(None, ge=1, description="for sessions that do not set them; default: all usable ones")
    min_accuracy: float = Field(0.0, ge=0, le=1, description="accuracy mode: least accuracy")
    timeout_s: float = Field(900, gt=0, description="time limit of the process, since LoadGen may hang")


@dataclass(frozen=True)
class LoadGenJob:
    """One scenario on one target."""

    scenario: Scenario
    threads: int
    engine: JsonObject
    """Options of the target, as a worker gets them."""


class SystemUnderTest:
    """Runs LoadGen's samples in one session."""

    def __init__(self, loadgen: Any, inference: BatchedInference, batch: int, *, keep_outputs: bool) -> None:
        self._loadgen, self._inference, self._keep = loadgen, inference, keep_outputs
        self._names = tensor_output_names(inference.session)[:1]
        self.batch = 1 if inference.one_sample_per_call else inference.batch(batch)
        self._waiting: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def call(self, indices: Sequence[int]) -> npt.NDArray[np.generic]:
        """Return the first output for some samples, shape (n, ...)."""
        inference = self._inference
        if inference.one_sample_per_call:
            return np.asarray(inference.session.run(self._names, inference.feed(indices[0], 1))[0])[None]
        # A fixed batch is filled up with the last sample.
        padded = [*indices, *[indices[-1]] * ((inference.fixed_batch or len(indices)) - len(indices))]
        feed = {name: samples[padded] for name, samples in inference.samples.items()}
        return np.asarray(inference.session.run(self._names, feed)[0])[: len(indices)]

    def respond(self, samples: Sequence[Any]) -> None:
        """Run samples in calls of `batch`, and tell LoadGen after each call."""
        for start in range(0, len(samples), self.batch):
            part = samples[start : start + self.batch]
            values = self.call([sample.index for sample in part])
            buffers = [array("B", np.ascontiguousarray(v).tobytes()) if self._keep else array("B") for v in values]
            places = [buffer.buffer_info() if self._keep else (0, 0) for buffer in buffers]
            response = self._loadgen.QuerySampleResponse
            pairs = zip(part, places, strict=True)
            self._loadgen.QuerySamplesComplete([response(s.id, address, size) for s, (address, size) in pairs])

    def enqueue(self, samples: Sequence[Any]) -> None:
        """Queue samples and return at once: in the Server scenario, more arrive before these are done."""
        for sample in samples:
            self._waiting.put(sample)

    def serve(self) -> None:
        """Run queued samples, as many in a call as are waiting and fit, until None comes."""
        while (sample := self._waiting.get()) is not None:
            part = [sample]
            while len(part) < self.batch and not self._waiting.empty():
                if (sample := self._waiting.get()) is None:
                    self._waiting.put(None)
                    break
                part.append(sample)
            self.respond(part)


def run_scenario(job: LoadGenJob, model: Path, inputs: Path, folder: Path) -> None:
    """Run one scenario; LoadGen writes its logs into the folder."""
    import mlperf_loadgen as lg

    samples = read_arrays(inputs)
    scenario = job.scenario
    engine = importlib.import_module(str(job.engine["engine"])).load_engine(model, job.threads, job.engine)
    inference = batched_inference(engine, samples)
    batch = 1 if scenario.scenario == "SingleStream" else scenario.batch
    system = SystemUnderTest(lg, inference, batch, keep_outputs=scenario.mode == "accuracy")
    samples_ms, _ = time_calls(partial(system.call, [0] * system.batch), least=WARM_UP_CALLS + TIMED_CALLS)
    settings = test_settings(lg, scenario, system.batch, median(samples_ms[WARM_UP_CALLS:]))
    if scenario.scenario != "Server":
        start_test(lg, settings, system.respond, len(inference), folder)
        return
    thread = threading.Thread(target=system.serve)
    thread.start()
    try:
        start_test(lg, settings, system.enqueue, len(inference), folder)
    finally:
        system.enqueue([None])
        thread.join()


def start_test(
    lg: Any, settings: Any, issue: Callable[[Sequence[Any]], None], count: int, folder: Path, *, trace: bool = False
) -> None:
    """Let LoadGen issue queries on `count` samples until the test is over; it writes its logs into the folder.

    `trace` writes every query's times, too; where the model runs in this process, that takes time from its calls.
    """
    logs = lg.LogSettings()
    logs.log_output.outdir = str(folder)
    logs.log_output.copy_summary_to_stdout = False
    logs.enable_trace = trace
    sut = lg.ConstructSUT(issue, lambda: None)
    qsl = lg.ConstructQSL(count, min(count, MAX_IN_MEMORY), lambda _: None, lambda _: None)
    try:
        lg.StartTestWithLogSettings(sut, qsl, settings, logs, "")
    finally:
        lg.DestroyQSL(qsl)
        lg.DestroySUT(sut)


def test_settings(lg: Any, scenario: Scenario, batch: int, measured_ms: float) -> Any:
    """Return LoadGen's settings, from the measured latency of a full call divided by 1.5.

    LoadGen prepares queries for the expected speed; a faster model would run out of them.
    """
    fast_ns = max(1, round(measured_ms * 1e6 / 1.5))
    settings = lg.TestSettings()
    settings.scenario = getattr(lg.TestScenario, scenario.scenario)
    settings.mode = lg.TestMode.AccuracyOnly if scenario.mode == "accuracy" else lg.TestMode.PerformanceOnly
    settings.min_duration_ms = round(scenario.min_duration_s * 1000)
    settings.min_query_count = scenario.min_queries or DEFAULT_QUERIES[scenario.scenario]
    settings.single_stream_expected_latency_ns = fast_ns
    settings.multi_stream_expected_latency_ns = fast_ns
    settings.multi_stream_samples_per_query = batch
    settings.offline_expected_qps = batch / (fast_ns / 1e9)
    settings.server_target_qps = scenario.target_qps or 0.5 / (measured_ms / 1e3)
    settings.server_target_latency_ns = round(scenario.target_latency_ms * 1e6)
    return settings
