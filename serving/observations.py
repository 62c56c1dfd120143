"""What the service counts: Prometheus histograms and counters, and the cumulative figures of the statistics extension.

The meanings are Triton's: rows and batches are counted apart, and failures have a reason.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from time import time
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, disable_created_metrics
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from serving.batcher import Job
from serving.errors import Refusal

disable_created_metrics()  # type: ignore[no-untyped-call]

SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
BATCH_ROWS = (1, 2, 4, 8, 16, 32, 64, 128)
MODEL = ("model", "version")
REASONS = tuple(sorted({refusal.reason for refusal in Refusal.__subclasses__()}))
OUTCOMES = ("success", "failure")


class Metrics:
    """The metrics of one server, in a registry of their own."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)

        def histogram(name: str, text: str, buckets: Sequence[float] = SECONDS) -> Histogram:
            return Histogram(f"gauntlet_{name}", text, MODEL, buckets=buckets, registry=self.registry)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"gauntlet_{name}", text, labels, registry=self.registry)

        self.request = histogram("request_duration_seconds", "From a request's arrival to its outputs, successes only.")
        self.queue = histogram("queue_duration_seconds", "From a request's arrival to the start of its call.")
        self.compute = histogram("compute_duration_seconds", "Of one call of the model.")
        self.batch = histogram("batch_rows", "Rows of one call of the model.", BATCH_ROWS)
        self.success = counter("requests_success_total", "Requests with outputs.", *MODEL)
        self.failure = counter("requests_failure_total", "Requests without outputs, by reason.", *MODEL, "reason")
        self.rows = counter("rows_total", "Samples that the model computed.", *MODEL)
        self.batches = counter("batches_total", "Calls of the model.", *MODEL)
        self.loads = counter("model_loads_total", "Loads of a model, by outcome.", "model", "outcome")
        self.responses = counter("http_responses_total", "HTTP responses by status.", "status")
        self.logged = counter("request_log_entries_total", "Entries of the request log, written or lost.", "outcome")
        age = "Since the registry last told what the model's alias names; 0 for a file."
        self.age = Gauge("gauntlet_model_alias_age_seconds", age, ("model",), registry=self.registry)
        self.waiting = Gauge("gauntlet_pending_requests", "Requests in the queue.", MODEL, registry=self.registry)

    def count_logged(self, outcome: str, entries: int) -> None:
        """Count entries of the request log, `written` or `lost`."""
        self.logged.labels(outcome).inc(entries)

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self.registry)


@dataclass
class Total:
    """A number of events and their time."""

    count: int = 0
    ns: int = 0

    def add(self, seconds: float) -> None:
        """Count one event."""
        self.count += 1
        self.ns += int(seconds * 1e9)


@dataclass
class Observations:
    """Counts of one version of a model since it was loaded, each also in the server's metrics."""

    metrics: Metrics
    name: str
    version: str
    rows: int = 0
    batches: int = 0
    last_request: float = 0.0
    success: Total = field(default_factory=Total)
    fail: Total = field(default_factory=Total)
    queue: Total = field(default_factory=Total)
    compute: Total = field(default_factory=Total)

    def __post_init__(self) -> None:
        labels, metrics = (self.name, self.version), self.metrics
        self._request, self._queue = metrics.request.labels(*labels), metrics.queue.labels(*labels)
        self._compute, self._batch = metrics.compute.labels(*labels), metrics.batch.labels(*labels)
        self._success, self._rows = metrics.success.labels(*labels), metrics.rows.labels(*labels)
        self._batches, self._waiting = metrics.batches.labels(*labels), metrics.waiting.labels(*labels)
        for reason in REASONS:  # at 0 from the start: Prometheus sees no increase of a series that begins with 1
            metrics.failure.labels(*labels, reason)
        for outcome in OUTCOMES:
            metrics.loads.labels(self.name, outcome)

    def computed(self, jobs: Sequence[Job], rows: int, seconds: float) -> None:
        """Count one call of the model."""
        self.rows += rows
        self.batches += 1
        self._rows.inc(rows)
        self._batches.inc()
        self._batch.observe(rows)
        self._compute.observe(seconds)
        for job in jobs:
            waited = job.started - job.arrived
            self.queue.add(waited)
            self.compute.add(seconds)
            self._queue.observe(waited)

    def pending(self, requests: int) -> None:
        """Set the number of requests in the queue."""
        self._waiting.set(requests)

    def succeeded(self, seconds: float) -> None:
        """Count a request with outputs."""
        self.last_request = time()
        self.success.add(seconds)
        self._success.inc()
        self._request.observe(seconds)

    def failed(self, reason: str, seconds: float) -> None:
        """Count a request without outputs."""
        self.last_request = time()
        self.fail.add(seconds)
        self.metrics.failure.labels(self.name, self.version, reason).inc()

    def statistics(self) -> dict[str, Any]:
        """Return the entry of the statistics extension; times of the codec are in none of its parts."""

        def duration(total: Total) -> dict[str, int]:
            return {"count": total.count, "ns": total.ns}

        nothing = duration(Total(count=self.success.count))
        return {
            "name": self.name,
            "version": self.version,
            "last_inference": int(self.last_request * 1000),
            "inference_count": self.rows,
            "execution_count": self.batches,
            "inference_stats": {
                "success": duration(self.success),
                "fail": duration(self.fail),
                "queue": duration(self.queue),
                "compute_input": nothing,
                "compute_infer": duration(self.compute),
                "compute_output": nothing,
                "cache_hit": duration(Total()),
                "cache_miss": duration(Total()),
            },
            "batch_stats": [],
        }
