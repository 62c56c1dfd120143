"""Ports of the loopback, taken when they are chosen: the server inherits the socket."""

import socket

HOST = "127.0.0.1"


class Port:
    """A port for a server. Nobody else can have it between its choice and the server's first start."""

    def __init__(self, number: int, first: socket.socket | None = None) -> None:
        self.number, self._first = number, first

    @classmethod
    def take(cls, preferred: int = 0) -> "Port":
        """Listen on the preferred port, or on a free one where that cannot be had."""
        try:
            listener = _listen(preferred)
        except OSError:
            listener = _listen(0)
        return cls(listener.getsockname()[1], listener)

    @property
    def address(self) -> str:
        """The address of a server on this port."""
        return f"http://{HOST}:{self.number}"

    def listener(self) -> socket.socket:
        """Return the socket for a start of the server; `OSError` where another program has taken the port since."""
        listener, self._first = self._first or _listen(self.number), None
        return listener


def _listen(port: int) -> socket.socket:
    listener = socket.create_server((HOST, port))
    # Connections inherit it. uvicorn would not set it: it takes an inherited socket for one of the file system.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener
