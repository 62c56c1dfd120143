"""Ports are taken when they are chosen, and a server inherits its own."""

import os
import sys
import urllib.request
from pathlib import Path

import pytest

from flows.servers.local_servers import launch, stop
from flows.servers.ports import Port

pytestmark = pytest.mark.slow
SERVER = """
import http.server, socket
server = http.server.HTTPServer(("", 0), http.server.SimpleHTTPRequestHandler, bind_and_activate=False)
server.socket = socket.socket(fileno=0)
server.serve_forever()
"""


def test_chosen_port_is_not_chosen_again_before_its_server_runs() -> None:
    first = Port.take()
    second = Port.take(first.number)
    assert second.number != first.number


def test_server_inherits_the_port_and_starts_again_on_it(tmp_path: Path) -> None:
    port = Port.take()
    for _ in range(2):
        server = launch([sys.executable, "-c", SERVER], dict(os.environ), tmp_path / "log", port.listener())
        try:
            with urllib.request.urlopen(f"{port.address}/", timeout=60) as response:
                assert response.status == 200
            assert Port.take(port.number).number != port.number
        finally:
            stop(server)


def test_port_that_another_program_took_since_is_refused() -> None:
    port = Port.take()
    port.listener().close()
    other = Port.take(port.number)
    assert other.number == port.number
    with pytest.raises(OSError, match="in use"):
        port.listener()
