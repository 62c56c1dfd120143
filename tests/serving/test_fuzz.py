"""Malformed requests: each is refused with a reason, none breaks the server."""

import random
import socket
from collections.abc import Iterator

import pytest
from malformed_requests import IMAGE, KINDS, LIMITS, PATH
from served_bundles import brightness_bundle
from server_process import ServerProcess, json_request, serving

REQUESTS = 500


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("fuzz")
    bundle = brightness_bundle(folder / "b", latencies=[(1, 1.0)])
    with serving(folder, bundle, *LIMITS, "--log-level", "error") as running:
        yield running


def test_five_hundred_malformed_requests_are_refused_with_a_reason(server: ServerProcess) -> None:
    rng = random.Random(7)
    for number in range(REQUESTS):
        make = KINDS[number % len(KINDS)]
        path, body, headers = make(rng)
        response = server.post(path, body, **headers)
        case = (number, make.__name__, path, body[:300], headers)
        assert 400 <= response.status < 500, (case, response)
        assert response.error, case
    assert server.post(PATH, json_request(IMAGE)).status == 200
    assert server.process.poll() is None


HEAD = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\n".encode()
NOT_WHOLE = {
    "noise": (b"\x00\xff\r\n\r\n", 400),
    "version": (b"POST / HTTP/9.9\r\n\r\n", 400),
    "length": (HEAD + b"Content-Length: -5\r\n\r\n", 400),
    "late": (HEAD + b"Content-Length: 1000\r\n\r\n{", 408),
    "large": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n40000\r\n" + bytes(0x40000) + b"\r\n0\r\n\r\n", 413),
}


@pytest.mark.parametrize("what", NOT_WHOLE)
def test_what_is_no_whole_request_is_refused(server: ServerProcess, what: str) -> None:
    raw, status = NOT_WHOLE[what]
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(raw)
        assert connection.recv(100).startswith(b"HTTP/1.1 %d" % status)
