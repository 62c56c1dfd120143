"""More requests than the model can compute: some are refused at once, the others meet their deadline."""

import asyncio
import re
import time
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest
from served_bundles import SIZE, brightness_bundle
from server_process import ServerProcess, json_request, serving

from serving.open_inference import binary_request

pytestmark = pytest.mark.slow
DEADLINE_S = 0.5
PATH = "/v2/models/brightness/infer"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("overload")
    bundle = brightness_bundle(folder / "b", busy=1500)
    with serving(folder, bundle, "--deadline-ms", str(1000 * DEADLINE_S), "--max-queue", "64") as running:
        yield running


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("patient")
    with serving(folder, brightness_bundle(folder / "b", busy=1500), "--deadline-ms", "60000") as running:
        yield running


async def one_request(server: ServerProcess, body: bytes, headers: dict[str, str]) -> tuple[int, float, dict[str, str]]:
    """Return status, seconds and headers of a request on a connection of its own."""
    start = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    lines = {"host": "localhost", "content-length": str(len(body)), "connection": "close", **headers}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    try:
        writer.write(f"POST {PATH} HTTP/1.1\r\n{head}\r\n".encode() + body)
        raw = await reader.read()
    finally:
        writer.close()
    text = raw.split(b"\r\n\r\n", 1)[0].decode().lower()
    return int(text.split(" ", 2)[1]), time.perf_counter() - start, dict(re.findall(r"([\w-]+): (.*)\r?", text))


async def offer(
    server: ServerProcess, per_s: float, seconds: float, body: bytes, headers: dict[str, str]
) -> list[tuple[int, float, dict[str, str]]]:
    """Send requests at a fixed rate, whatever the responses."""
    tasks = []
    start = time.perf_counter()
    for number in range(round(per_s * seconds)):
        await asyncio.sleep(max(0.0, start + number / per_s - time.perf_counter()))
        tasks.append(asyncio.create_task(one_request(server, body, headers)))
    return await asyncio.gather(*tasks)


def test_at_twice_the_capacity_the_admitted_meet_the_deadline_and_the_others_are_told_to_retry(
    server: ServerProcess,
) -> None:
    body, headers = binary_request({"image": np.zeros((4, 1, SIZE, SIZE), np.float32)})

    async def scenario() -> list[tuple[int, float, dict[str, str]]]:
        start = time.perf_counter()
        alone = [await one_request(server, body, headers) for _ in range(6)]
        per_s = 4 * 6 / (time.perf_counter() - start)  # a batch of several costs less than each alone
        return [*alone, *await offer(server, per_s, 3.0, body, headers)]

    done = asyncio.run(scenario())
    statuses = Counter(status for status, _, _ in done)
    assert set(statuses) == {200, 429}
    assert all(int(headers["retry-after"]) >= 1 for status, _, headers in done if status == 429)
    admitted = sorted(seconds for status, seconds, _ in done if status == 200)
    assert admitted[round(0.9 * (len(admitted) - 1))] < 4 * DEADLINE_S  # generous: other work shares the cores
    assert server.metric("gauntlet_requests_failure_total", reason="rejected") == statuses[429]
    assert server.post(PATH, json_request({"image": np.zeros((1, 1, SIZE, SIZE), np.float32)})).status == 200


async def keep_busy(server: ServerProcess) -> list[asyncio.Task[tuple[int, float, dict[str, str]]]]:
    """Send large requests until one waits behind another that is being computed, for at least a tenth of a second."""
    body, headers = binary_request({"image": np.zeros((64, 1, SIZE, SIZE), np.float32)})
    tasks = []
    while await asyncio.to_thread(server.metric, "gauntlet_pending_requests") < 1:
        tasks.append(asyncio.create_task(one_request(server, body, headers)))
        await asyncio.sleep(0.02)
    return tasks


def test_request_of_a_client_that_left_is_not_computed(patient: ServerProcess) -> None:
    body, headers = binary_request({"image": np.zeros((1, 1, SIZE, SIZE), np.float32)})

    async def scenario() -> int:
        slow = await keep_busy(patient)
        waiting = patient.metric("gauntlet_pending_requests")
        leaving = asyncio.create_task(one_request(patient, body, headers))
        while await asyncio.to_thread(patient.metric, "gauntlet_pending_requests") <= waiting:
            assert not leaving.done()
        leaving.cancel()
        await asyncio.gather(*slow)
        return len(slow)

    large = asyncio.run(scenario())
    assert patient.metric("gauntlet_requests_failure_total", reason="canceled") == 1
    assert patient.metric("gauntlet_rows_total") == 64 * large


def test_request_may_ask_for_a_shorter_deadline(patient: ServerProcess) -> None:
    short, headers = binary_request(
        {"image": np.zeros((1, 1, SIZE, SIZE), np.float32)}, parameters={"timeout": 1, "binary_data_output": True}
    )

    async def scenario() -> int:
        slow = await keep_busy(patient)
        status, _, _ = await one_request(patient, short, headers)
        await asyncio.gather(*slow)
        return status

    assert asyncio.run(scenario()) == 429
