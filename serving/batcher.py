"""Dynamic batching: a call has whatever has queued while the previous call ran.

When the model is idle, a request runs at once: a delay in the hope of company would only add to its latency, and when
the model is busy, company comes by itself. A quick call for a single request is made in the event loop, because a
thread that is woken, and wakes the loop again, adds as much as all else outside the model. A call for several is made
in a thread, so that the loop receives the next requests meanwhile.

The queue is bounded in requests and in time: a request whose outputs would come after its deadline is refused when it
arrives, and not computed where it is already too late. What is predicted is corrected by how late earlier responses
were: under load, the event loop too has a queue, and so have the cores.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Protocol

import numpy as np

from gauntlet.core.arrays import NamedArrays
from gauntlet.core.errors import StageError
from serving.cost_model import CostModel, Smoothed
from serving.errors import ClientGone, ModelRejected, NotReady, Overloaded

QUICK_S = 0.01
"""Expected length of a call that may block the event loop."""


@dataclass(eq=False)
class Job:
    """One request's inputs, shape (rows, ...), on their way through the queue. Times are of `perf_counter`."""

    inputs: NamedArrays
    rows: int
    deadline: float
    future: asyncio.Future[NamedArrays]
    arrived: float
    started: float = 0.0
    waits: bool = False
    """Whether it was admitted behind others."""
    expected: float = 0.0
    """When its outputs were to come."""
    canceled: bool = False
    shapes: tuple[tuple[int, ...], ...] = field(init=False)

    def __post_init__(self) -> None:
        self.shapes = tuple(array.shape[1:] for array in self.inputs.values())


Results = list[tuple[Job, NamedArrays | Exception]]


class Observer(Protocol):
    """Is told of what the batcher does, in the thread that does it."""

    def computed(self, jobs: Sequence[Job], rows: int, seconds: float) -> None:
        """One call of the model ended."""

    def pending(self, requests: int) -> None:
        """So many requests wait."""


class Batcher:
    """Runs a model on queued requests, joined along the first axis where `joins` says so; one call at a time.

    With `apart`, requests have rows, but each has a call of its own: the model lets rows of a call change each other.
    """

    def __init__(
        self,
        run: Callable[[NamedArrays], NamedArrays],
        cost: CostModel,
        observer: Observer,
        *,
        joins: bool,
        max_queue: int,
        apart: bool = False,
    ) -> None:
        self._run, self._cost, self._observer = run, cost, observer
        self._joins, self._max_queue, self._apart = joins, max_queue, apart
        self._queue: deque[Job] = deque()
        self._rows = 0  # of the queued requests that are not canceled
        self._changed = threading.Condition()
        self._busy_until = 0.0  # expected; 0 when idle
        self._lateness = Smoothed(0.0)  # seconds by which responses left after they were expected
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="batcher", daemon=True)
        self._thread.start()

    def require_room(self, deadline: float) -> None:
        """Raise `Overloaded` when not even one more row can be admitted; cheaper than reading the request first."""
        with self._changed:
            self._admit(1, deadline)

    def submit(self, inputs: NamedArrays, rows: int, deadline: float, arrived: float) -> Job:
        """Queue a request, which the caller awaits with `result`; raise `Overloaded` when it would come too late."""
        loop = asyncio.get_running_loop()
        job = Job(inputs, rows, deadline, loop.create_future(), arrived)
        with self._changed:
            if self._closed:
                raise NotReady("the model is unloaded")
            job.waits = self._is_busy()
            job.expected = self._admit(rows, deadline)
            self._queue.append(job)
            self._rows += self._weight(rows)
            self._observer.pending(len(self._queue))
            if not job.waits:  # once those that have arrived too are in the queue; a busy thread looks there itself
                loop.call_soon(self._start)
        return job

    async def result(self, job: Job, disconnected: Callable[[], Awaitable[object]]) -> NamedArrays:
        """Return the outputs; raise `ClientGone` when the client leaves before its request is computed."""
        if not job.waits:
            return await job.future
        watch = asyncio.ensure_future(disconnected())
        watch.add_done_callback(lambda _: self._cancel(job))
        try:
            return await job.future
        finally:
            watch.cancel()

    def close(self) -> None:
        """Finish what is queued, then end the thread; blocks until it has ended."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _cancel(self, job: Job) -> None:
        """Keep a request from being computed that still waits."""
        if job.future.done():
            return
        with self._changed:
            if not job.started:
                job.canceled = True
                self._rows -= self._weight(job.rows)
        job.future.set_exception(ClientGone("the client closed the connection"))

    def _is_busy(self) -> bool:
        return bool(self._queue or self._busy_until)

    def _admit(self, rows: int, deadline: float) -> float:
        """Return when a request has its outputs; raise `Overloaded` when it has to wait and that may be too late."""
        now = perf_counter()
        left = max(0.0, self._busy_until - now)
        end = now + left + self._cost.wait(self._rows + self._weight(rows))
        if not self._is_busy():
            return end
        if len(self._queue) >= self._max_queue:
            raise Overloaded(f"the queue is full: {len(self._queue)} requests", left + self._cost.wait(self._rows) / 2)
        late = end + max(0.0, self._lateness.most) - deadline
        if late > 0:
            raise Overloaded(f"{self._rows} rows wait: the outputs would come {late:.3f} s after the deadline", late)
        return end

    def _weight(self, rows: int) -> int:
        return rows if self._joins else 1

    def _start(self) -> None:
        """Make the call for what has queued while idle: here, or in the thread."""
        with self._changed:
            if len(self._queue) != 1 or self._cost.wait(self._rows) > QUICK_S:
                self._changed.notify()
                return
            jobs, late = self._take()
        self._perform(jobs, late, self._set)
        with self._changed:
            self._busy_until = 0.0

    def _work(self) -> None:
        while True:
            with self._changed:
                self._busy_until = 0.0
                self._changed.wait_for(lambda: self._queue or self._closed)
                if not self._queue:
                    return
                jobs, late = self._take()
            self._perform(jobs, late, self._set_in_loop)

    def _perform(self, jobs: list[Job], late: list[Job], deliver: Callable[[Results], None]) -> None:
        if late:
            deliver([(job, Overloaded("the deadline passed in the queue", 1)) for job in late])
        if jobs:
            deliver(self._compute(jobs))

    def _take(self) -> tuple[list[Job], list[Job]]:
        """Begin a call: take the next call's requests from the queue, and those that would come too late."""
        jobs: list[Job] = []
        late: list[Job] = []
        rows, now = 0, perf_counter()
        while self._queue:
            job = self._queue[0]
            weight = self._weight(job.rows)
            full = self._apart or rows + weight > self._cost.max_rows
            if jobs and (full or job.shapes != jobs[0].shapes):
                break
            self._queue.popleft()
            if job.canceled:
                continue
            self._rows -= weight
            job.started = now
            if job.waits and now + self._cost.call(rows + weight) > job.deadline:
                late.append(job)
                continue
            jobs.append(job)
            rows += weight
        if jobs:
            self._busy_until = now + self._cost.wait(rows)
        self._observer.pending(len(self._queue))
        return jobs, late

    def _compute(self, jobs: list[Job]) -> Results:
        """Run the requests together; where that fails, each alone, so that one cannot spoil the others."""
        rows, start = sum(self._weight(job.rows) for job in jobs), perf_counter()
        try:
            done = self._run_joined(jobs)
        except Exception as error:
            if len(jobs) > 1:
                return [result for job in jobs for result in self._compute([job])]
            return [(jobs[0], _cause(error))]
        seconds = perf_counter() - start
        self._cost.observe(rows, seconds)
        self._observer.computed(jobs, sum(job.rows for job in jobs), seconds)
        return list(zip(jobs, done, strict=True))

    def _run_joined(self, jobs: list[Job]) -> list[NamedArrays]:
        if not self._joins:
            return [self._run(job.inputs) for job in jobs]
        inputs = jobs[0].inputs
        if len(jobs) > 1:
            inputs = {name: np.concatenate([job.inputs[name] for job in jobs]) for name in inputs}
        outputs = self._run(inputs)
        if len(jobs) == 1:
            return [outputs]
        ends = np.cumsum([job.rows for job in jobs]).tolist()
        return [
            {name: array[end - job.rows : end] for name, array in outputs.items()}
            for job, end in zip(jobs, ends, strict=True)
        ]

    def _set(self, results: Results) -> None:
        """Wake the requests that wait for these outputs."""
        for job, result in results:
            if job.future.done():
                continue
            if isinstance(result, Exception):
                job.future.set_exception(result)
            else:
                job.future.set_result(result)
        asyncio.get_running_loop().call_soon(self._responded, results)  # after each has sent its response

    def _set_in_loop(self, results: Results) -> None:
        """Do what `_set` does, from another thread."""
        loop = results[0][0].future.get_loop()
        if not loop.is_closed():
            loop.call_soon_threadsafe(self._set, results)

    def _responded(self, results: Results) -> None:
        """Note how late a call's responses were, also of requests that did not wait: perhaps no other may, for now."""
        self._lateness.observe(perf_counter() - min(job.expected for job, _ in results))


def _cause(error: Exception) -> Exception:
    """Return what the client is told: what the runtime refuses is about the inputs, since the golden ones ran."""
    return ModelRejected(str(error)) if isinstance(error, StageError) else error
