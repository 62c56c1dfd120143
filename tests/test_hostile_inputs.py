"""Ten thousand hostile requests, heads, images, bundles and ledgers: no crash, no hang, bounded memory.

Whatever is refused is refused with a reason. The inputs are the same at every run.
"""

import io
import json
import random
import shutil
import socket
import warnings
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import psutil
import pytest
from bundles import png
from graded_bundles import make_bundle, seal_with_evidence
from ledger_lines import append
from malformed_requests import IMAGE, KINDS, LIMITS, PATH, STRANGE
from PIL import Image
from served_bundles import brightness_bundle
from server_process import ServerProcess, json_request, serving

from gauntlet.bundle.loading import golden_differences, load_bundle
from gauntlet.core.errors import PipelineError, StageError
from gauntlet.core.report import Check
from gauntlet.images.decoding import decode_image
from wings.lifecycle.commands.history_command import _row
from wings.lifecycle.library.promotion import ledger as ledgers
from wings.lifecycle.library.promotion.ledger import Ledger
from wings.lifecycle.registry.model_history import History

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1800)]

REQUESTS, HEADS, IMAGES, BUNDLES, LEDGERS = 4500, 1500, 2000, 1500, 500
LIMIT_S = 15.0
"""For any one input: a connection without a whole head is ended after ten seconds."""
MAX_GROWTH_BYTES = 512_000_000
"""Of the memory; the bodies of all requests together may have so much."""


class Guard:
    """Measures the time of each input, and the memory of a process, against the limits."""

    def __init__(self, process: psutil.Process) -> None:
        self.process, self.first = process, process.memory_info().rss
        self.longest_s, self.growth = 0.0, 0

    def __call__(self, case: object, work: Callable[[], Any]) -> Any:
        """Return what the work returns."""
        start = perf_counter()
        result = work()
        self.longest_s = max(self.longest_s, seconds := perf_counter() - start)
        assert seconds < LIMIT_S, case
        self.growth = max(self.growth, self.process.memory_info().rss - self.first)
        assert self.growth < MAX_GROWTH_BYTES, case
        return result

    def report(self) -> None:
        print(f"longest {self.longest_s:.2f} s, memory +{self.growth / 1e6:.0f} MB")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("hostile")
    with serving(folder, brightness_bundle(folder / "b", latencies=[(1, 1.0)]), *LIMITS) as running:
        yield running


def mutated(rng: random.Random, content: bytes) -> bytes:
    """Return the content with bytes changed, parts removed, repeated or set to extremes, or cut short."""
    data = bytearray(content)
    for _ in range(rng.randint(1, 6)):
        place, size = rng.randrange(len(data) + 1), rng.choice((1, 2, 4, 8, 40))
        part = bytes(data[place : place + size])
        replacement = rng.choice(
            (rng.randbytes(len(part)), b"\xff" * len(part), bytes(len(part)), part * rng.choice((2, 30, 2000)), b"")
        )
        data[place : place + size] = replacement
    return bytes(data[: rng.randrange(len(data) + 1)] if rng.random() < 0.2 else data)


def test_requests(server: ServerProcess) -> None:
    rng, guard = random.Random(1), Guard(psutil.Process(server.process.pid))
    for number in range(REQUESTS):
        make = KINDS[number % len(KINDS)]
        path, body, headers = make(rng)
        if changed := rng.random() < 0.3 and "/repository/" not in path:  # a right one would unload the model
            body = mutated(rng, body)
        case = (number, make.__name__, path, body[:200], headers)
        response = guard(case, lambda: server.post(path, body, **headers))  # noqa: B023
        assert 400 <= response.status < 500 or (changed and response.status == 200), (case, response)
        assert response.status == 200 or response.error, case
    guard.report()
    assert server.post(PATH, json_request(IMAGE)).status == 200


def test_heads(server: ServerProcess) -> None:
    rng, guard = random.Random(2), Guard(psutil.Process(server.process.pid))
    body = json.dumps(json_request(IMAGE)).encode()
    kinds = (
        f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body,
        f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
        + b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body),
        b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: a\r\nAuthorization: Bearer x\r\n\r\n",
        b"GET /metrics HTTP/1.0\r\nHost: localhost\r\nConnection: keep-alive, Upgrade\r\nUpgrade: h2c\r\n\r\n" * 3,
    )
    heads = [mutated(rng, rng.choice(kinds)) for _ in range(HEADS)]

    def send(head: bytes) -> None:
        with socket.create_connection(("127.0.0.1", server.port), timeout=LIMIT_S) as connection:
            try:
                connection.sendall(head)
                connection.shutdown(socket.SHUT_WR)
                answer = connection.recv(20)
            except ConnectionError:  # the server has ended it
                return
            assert not answer or (answer.startswith(b"HTTP/1.1 ") and answer[9:10] != b"5"), (head[:300], answer)

    with ThreadPoolExecutor(16) as pool:
        for done in [pool.submit(guard, head[:300], lambda head=head: send(head)) for head in heads]:  # type: ignore[misc]
            done.result()
    guard.report()
    assert server.post(PATH, json_request(IMAGE)).status == 200


def image_files() -> list[bytes]:
    """Return the same photo in every format, and compressed in several ways."""
    x, y = np.meshgrid(np.arange(96), np.arange(64))
    photo = Image.fromarray(np.stack([x * 2, y * 3, x ^ y], -1).astype(np.uint8))
    ways: list[dict[str, Any]] = [{"format": name} for name in ("PNG", "JPEG", "GIF", "TIFF", "WEBP", "BMP", "PPM")]
    ways += [{"format": "JPEG", "progressive": True}, {"format": "WEBP", "lossless": True}]
    ways += [{"format": "TIFF", "compression": name} for name in ("tiff_lzw", "tiff_adobe_deflate", "jpeg", "packbits")]
    files = [png(3), b"P3 8 8 255\n" + b"1 2 3 " * 64]
    for way in ways:
        stream = io.BytesIO()
        photo.save(stream, **way)
        files.append(stream.getvalue())
    return files


def test_images() -> None:
    rng, guard, files = random.Random(3), Guard(psutil.Process()), image_files()

    def decode(content: bytes) -> None:
        try:
            pixels = decode_image(content, 3, 2_000_000)
        except StageError as error:
            assert str(error)
        else:
            assert pixels.ndim == 3 and pixels.shape[0] * pixels.shape[1] <= 2_000_000

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in range(IMAGES):
            content = mutated(rng, files[number % len(files)])
            guard((number, content[:100]), lambda: decode(content))  # noqa: B023
    guard.report()


def strange_value(rng: random.Random, value: Any) -> Any:
    """Return JSON with one of its values, anywhere, replaced by a strange one."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        key = rng.choice([*value])
        return {**value, key: strange_value(rng, value[key])}
    if isinstance(value, list) and value and rng.random() < 0.85:
        place = rng.randrange(len(value))
        return [*value[:place], strange_value(rng, value[place]), *value[place + 1 :]]
    return rng.choice(STRANGE)


def hostile_bundle(rng: random.Random, whole: Path, folder: Path) -> Path:
    """Return a damaged archive, a folder with a damaged file, or one that its author has sealed again."""
    if rng.random() < 0.4:
        (folder / "x.zip").write_bytes(mutated(rng, whole.with_suffix(".zip").read_bytes()))
        return folder / "x.zip"
    copy = folder / "b"
    shutil.copytree(whole, copy)
    path = rng.choice(sorted(p for p in copy.rglob("*") if p.is_file()))
    if path.suffix == ".json" and rng.random() < 0.8:
        path.write_text(json.dumps(strange_value(rng, json.loads(path.read_bytes()))))
    else:
        path.write_bytes(mutated(rng, path.read_bytes()))
    if path.name in ("contract.json", "golden.npz", "report.json") and rng.random() < 0.7:
        seal_with_evidence(copy)
    if rng.random() < 0.3:
        with zipfile.ZipFile(folder / "b.zip", "w") as archive:
            for file in sorted(p for p in copy.rglob("*") if p.is_file()):
                archive.write(file, rng.choice(("", "../", "/")) * (rng.random() < 0.05) + str(file.relative_to(copy)))
        return folder / "b.zip"
    return copy


def test_bundles(tmp_path: Path) -> None:
    make_bundle(tmp_path / "whole")
    rng, guard, loaded = random.Random(4), Guard(psutil.Process()), 0

    def load(path: Path) -> int:
        try:
            golden_differences(load_bundle(path, threads=1))
        except PipelineError as error:
            assert str(error)
            return 0
        return 1

    for number in range(BUNDLES):
        folder = tmp_path / "one"
        folder.mkdir()
        path = hostile_bundle(rng, tmp_path / "whole", folder)
        loaded += guard(number, lambda: load(path))  # noqa: B023
        assert {p.name for p in tmp_path.iterdir()} == {"whole", "whole.zip", "one"}  # nothing outside
        shutil.rmtree(folder)
    guard.report()
    assert loaded < BUNDLES / 4


def test_ledgers(tmp_path: Path) -> None:
    rng, guard = random.Random(5), Guard(psutil.Process())
    made = Ledger(tmp_path / "digits.jsonl")
    champion, failed = {"champion": "a" * 64}, Check.of("promote.max_slowdown", 0.12, "<=", 0.05)
    append(made, "promote", by="anna", role="champion", digest="a" * 64, after=champion)
    append(made, "commit", by="anna", intent=1, versions={"a" * 64: "1"}, seconds=0.2)
    append(made, "refuse", by="anna", role="champion", digest="b" * 64, before=champion, checks=(failed,))
    append(made, "canary", by="anna", digest="c" * 64, before=champion, after=champion, share=0.01)
    lines = made.lines()

    def read() -> None:
        entries, problem = made.read()
        past = History("digits", entries, problem)
        for entry in entries:
            assert _row(past, entry, past.versions())
        assert json.dumps(past.as_json())
        for of in (ledgers.pending, ledgers.last_committed, ledgers.running_canary, ledgers.awaiting_approval):
            of(entries)

    for number in range(LEDGERS):
        content = b"\n".join(lines) + b"\n"
        if rng.random() < 0.5:
            content = mutated(rng, content)
        else:  # every line follows from the one before
            parent, chained = ledgers.FIRST_PARENT, b""
            for line in lines:
                value = json.loads(line)
                key = rng.choice([*value])
                value |= {key: strange_value(rng, value[key])} if rng.random() < 0.4 else {}
                line = json.dumps({**value, "parent": parent}).encode()
                parent, chained = ledgers.digest_of(line), chained + line + b"\n"
            content = chained
        made.path.write_bytes(content)
        guard((number, content[:200]), read)
    guard.report()
