"""HTTP as uvicorn speaks it, with one write for each response."""

import asyncio
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


class JoinedWrites:
    """A transport that sends two writes together which follow each other in one step of the event loop."""

    def __init__(self, transport: asyncio.Transport, call_soon: Callable[..., object]) -> None:
        self._transport, self._call_soon = transport, call_soon
        self._held = b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Keep data until more comes or the loop goes on."""
        if self._held:
            self._flush(data)
        elif data:
            self._held = data
            self._call_soon(self._flush)

    def close(self) -> None:
        """Send what is kept, and close the connection."""
        self._flush()
        self._transport.close()

    def _flush(self, more: bytes = b"") -> None:
        if self._held and not self._transport.is_closing():
            self._transport.writelines((self._held, more))
        self._held = b""


class JoiningProtocol(HttpToolsProtocol):
    """uvicorn writes the head and the body of a response apart, and the first of them wakes the client too early."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin a connection."""
        super().connection_made(JoinedWrites(transport, self.loop.call_soon))  # type: ignore[arg-type]
