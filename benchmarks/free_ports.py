"""Ports for programs that cannot inherit a socket."""

import socket

from flows.servers.ports import HOST


def free_port() -> int:
    """Return a port that is free now."""
    with socket.create_server((HOST, 0)) as listener:
        return int(listener.getsockname()[1])
