"""Requests over HTTP, with as little work for each as possible, because the client shares the server's cores."""

import socket
from time import monotonic

HOST = "127.0.0.1"
RECEIVED_BYTES = 1 << 16
MAX_IDLE_S = 1.0
"""A server closes idle connections, after 5 s for `gauntlet serve`; a request on one of those would fail."""


def http_request(path: str, body: bytes, headers: dict[str, str]) -> bytes:
    """Return a whole POST request."""
    lines = {"host": "localhost", "content-length": str(len(body)), **headers}
    text = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"POST {path} HTTP/1.1\r\n{text}\r\n".encode() + body


class Connection:
    """One connection to a port of the loopback, which is kept open from request to request."""

    def __init__(self, port: int, timeout_s: float) -> None:
        self._port, self._timeout_s = port, timeout_s
        self._socket: socket.socket | None = None
        self._used_at = 0.0

    def send(self, request: bytes) -> int:
        """Send a request, read the whole response, and return its status; `OSError` when there is none."""
        if monotonic() - self._used_at > MAX_IDLE_S:
            self.close()
        if self._socket is None:
            self._socket = socket.create_connection((HOST, self._port), self._timeout_s)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        status = self._exchange(self._socket, request)
        self._used_at = monotonic()
        return status

    def close(self) -> None:
        """Close the connection; the next request opens another one."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    @staticmethod
    def _exchange(connected: socket.socket, request: bytes) -> int:
        connected.sendall(request)
        received = b""
        while b"\r\n\r\n" not in received:
            received += _some(connected)
        head, _, body = received.partition(b"\r\n\r\n")
        missing = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]) - len(body)
        while missing > 0:
            missing -= len(_some(connected))
        return int(head.split(b" ", 2)[1])


def _some(connected: socket.socket) -> bytes:
    data = connected.recv(RECEIVED_BYTES)
    if not data:
        raise ConnectionResetError("the server closed the connection")
    return data
