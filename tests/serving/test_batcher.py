"""Where calls are made, and who shares them."""

import asyncio
import threading
import time
from collections.abc import Sequence

import numpy as np
import pytest

from gauntlet.core.arrays import NamedArrays
from serving.batcher import QUICK_S, Batcher, Job
from serving.cost_model import CostModel
from serving.errors import ClientGone, Overloaded

FAR = float("inf")


class Calls:
    """Doubles its input, and notes each call's thread and rows."""

    def __init__(self) -> None:
        self.threads: list[str] = []
        self.rows: list[int] = []

    def __call__(self, inputs: NamedArrays) -> NamedArrays:
        self.threads.append(threading.current_thread().name)
        self.rows.append(len(inputs["x"]))
        return {"y": 2 * inputs["x"]}

    def computed(self, jobs: Sequence[Job], rows: int, seconds: float) -> None:
        assert sum(job.rows for job in jobs) == rows

    def pending(self, requests: int) -> None:
        assert requests >= 0


async def connected() -> None:
    await asyncio.Event().wait()


async def ask(batcher: Batcher, value: float) -> float:
    job = batcher.submit({"x": np.full((1, 1), value)}, 1, FAR, 0.0)
    return float((await batcher.result(job, connected))["y"][0, 0])


def together(calls: Calls, seconds: float, requests: int) -> list[float]:
    """Return the outputs of requests that arrive in the same step of the event loop."""
    batcher = Batcher(calls, CostModel({1: seconds, 8: seconds}, 8), calls, joins=True, max_queue=64)

    async def scenario() -> list[float]:
        return await asyncio.gather(*(ask(batcher, number) for number in range(requests)))

    outputs = asyncio.run(scenario())
    batcher.close()
    return outputs


def test_quick_call_for_one_request_is_made_in_the_event_loop() -> None:
    calls = Calls()
    assert together(calls, QUICK_S / 2, 1) == [0]
    assert calls.threads == [threading.current_thread().name]


def test_slow_call_is_made_in_the_thread() -> None:
    calls = Calls()
    assert together(calls, QUICK_S * 2, 1) == [0]
    assert calls.threads == ["batcher"]


def test_requests_that_have_arrived_together_share_the_first_call() -> None:
    calls = Calls()
    assert together(calls, QUICK_S / 2, 5) == [0, 2, 4, 6, 8]
    assert (calls.threads, calls.rows) == (["batcher"], [5])


def test_call_that_fails_in_the_event_loop_is_the_requests_failure_alone() -> None:
    calls, failing = Calls(), True

    def run(inputs: NamedArrays) -> NamedArrays:
        if failing:
            raise ValueError("broken")
        return calls(inputs)

    batcher = Batcher(run, CostModel({1: QUICK_S / 2}, 8), calls, joins=True, max_queue=64)

    async def scenario() -> float:
        nonlocal failing
        with pytest.raises(ValueError, match="broken"):
            await ask(batcher, 1)
        failing = False
        return await ask(batcher, 2)

    assert asyncio.run(scenario()) == 4
    batcher.close()


def test_waiting_request_whose_client_left_is_not_computed() -> None:
    calls, running, go_on = Calls(), threading.Event(), threading.Event()

    def run(inputs: NamedArrays) -> NamedArrays:
        running.set()
        go_on.wait()
        return calls(inputs)

    batcher = Batcher(run, CostModel({1: QUICK_S * 2}, 1), calls, joins=True, max_queue=64)

    async def leave() -> None:
        return None

    async def scenario() -> float:
        first = asyncio.create_task(ask(batcher, 1))
        await asyncio.to_thread(running.wait)
        job = batcher.submit({"x": np.zeros((1, 1))}, 1, FAR, 0.0)
        with pytest.raises(ClientGone):
            await batcher.result(job, leave)
        last = asyncio.create_task(ask(batcher, 3))
        go_on.set()
        assert await first == 2
        return await last

    assert asyncio.run(scenario()) == 6
    batcher.close()
    assert calls.rows == [1, 1]


def test_request_is_refused_that_would_be_late_as_earlier_responses_were_until_these_are_in_time() -> None:
    calls, running, go_on = Calls(), threading.Event(), threading.Event()

    def run(inputs: NamedArrays) -> NamedArrays:
        running.set()
        time.sleep(2 * QUICK_S)  # or the batcher would learn that a call is quick, and make it in the event loop
        go_on.wait()
        return calls(inputs)

    batcher = Batcher(run, CostModel({1: QUICK_S * 2}, 1), calls, joins=True, max_queue=64)

    async def one_waits() -> list[asyncio.Task[float]]:
        running.clear()
        go_on.clear()
        first = asyncio.create_task(ask(batcher, 1))
        await asyncio.to_thread(running.wait)
        return [first, asyncio.create_task(ask(batcher, 2))]

    async def scenario() -> None:
        asked = await one_waits()
        batcher.require_room(time.perf_counter() + 0.25)
        await asyncio.sleep(0)
        go_on.set()
        busy_until = time.perf_counter() + 0.5  # the event loop is busy with something else while both calls are made
        while (now := time.perf_counter()) < busy_until or (sum(calls.rows) < 2 and now < busy_until + 30):
            time.sleep(0.01)
        assert await asyncio.gather(*asked) == [2, 4]
        await asyncio.sleep(0)
        asked = await one_waits()
        with pytest.raises(Overloaded, match="after the deadline"):
            batcher.require_room(time.perf_counter() + 0.25)
        go_on.set()
        await asyncio.gather(*asked)
        for _ in range(25):  # none of them waits, and all are in time
            await ask(batcher, 1)
        asked = await one_waits()
        batcher.require_room(time.perf_counter() + 0.25)
        go_on.set()
        await asyncio.gather(*asked)

    asyncio.run(scenario())
    batcher.close()
