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


@pytest.mark.parametrize(
    "raw",
    [
        b"\x00\xff\r\n\r\n",
        b"POST / HTTP/9.9\r\n\r\n",
        b"POST " + PATH.encode() + b" HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
    ],
    ids=["noise", "version", "length"],
)
def test_what_is_no_http_is_refused(server: ServerProcess, raw: bytes) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(raw)
        assert connection.recv(100).startswith(b"HTTP/1.1 400")


def test_body_that_does_not_arrive_is_given_up(server: ServerProcess) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{{".encode())
        assert connection.recv(100).startswith(b"HTTP/1.1 408")


def test_large_body_without_a_length_is_refused(server: ServerProcess) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        head = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        connection.sendall(head.encode() + b"40000\r\n" + bytes(0x40000) + b"\r\n0\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 413")
