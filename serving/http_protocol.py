"""HTTP as uvicorn speaks it, with one write for each response."""

import asyncio
import math
import re
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


MAX_HEAD_BYTES = 65_536
"""Of a request's line and headers, or of what follows a body: to parse a header takes the square of its size."""
HEAD_TIMEOUT_S = 10.0
"""From a connection, or the first byte behind a response, to the end of a request's headers."""
SEND_TIMEOUT_S = 120.0
"""Within which a client has to take some of a response: what it does not take is in memory."""
UPGRADE = re.compile(rb"\r\nupgrade:[^\r\n]*", re.IGNORECASE)
TOO_LONG = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class JoiningProtocol(HttpToolsProtocol):
    """uvicorn writes the head and the body of a response apart, and the first of them wakes the client too early.

    It also waits for the head of a request as long as it takes, and of any size, and for a client that does not read;
    this ends such connections. And it loses the body of a request that offers to change to another protocol, as Java's
    HttpClient does at first (`h2c`); this leaves out the offer, as a server may (RFC 9110, section 7.8). Where that is
    not possible, the connection ends with the response: the body would be read as the next request.
    """

    _unparsed_bytes = 0
    _head_timer: asyncio.TimerHandle | None = None
    _reader_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin a connection."""
        super().connection_made(JoinedWrites(transport, self.loop.call_soon))  # type: ignore[arg-type]
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """End a connection."""
        self._end_head()
        self.resume_writing()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Wait for a client that takes a response more slowly than it is sent, as long as it takes any of it."""
        super().pause_writing()
        self._await_reader(math.inf)

    def resume_writing(self) -> None:
        """Send the rest."""
        if self._reader_timer is not None:
            self._reader_timer.cancel()
            self._reader_timer = None
        super().resume_writing()

    def data_received(self, data: bytes) -> None:
        """Parse what came, unless a head is too long."""
        self._unparsed_bytes += len(data)
        if self._unparsed_bytes > MAX_HEAD_BYTES + len(data):  # what was there before is too long, and has no end
            if not self.transport.is_closing():
                self.transport.write(TOO_LONG)
                self.transport.close()
            return
        if self.cycle and self.cycle.response_complete and self._head_timer is None:  # uvicorn waits no longer for one
            self._await_head()
        if self._head_timer is not None:
            end = data.find(b"\r\n\r\n")
            if end >= 0 and (offer := UPGRADE.search(data, 0, end)):
                data = data[: offer.start()] + data[offer.end() :]
        super().data_received(data)

    def on_headers_complete(self) -> None:
        """Begin the body of a request."""
        self._end_head()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Take a part of the body."""
        self._unparsed_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End a request; the headers of the next one count anew."""
        self._unparsed_bytes = 0
        super().on_message_complete()

    def _unsupported_upgrade_warning(self) -> None:
        self.cycle.keep_alive = False

    def _await_head(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self.transport.close)

    def _await_reader(self, before: float) -> None:
        unsent = self.transport.get_write_buffer_size()
        if unsent >= before:
            self.transport.abort()
        else:
            self._reader_timer = self.loop.call_later(SEND_TIMEOUT_S, self._await_reader, unsent)

    def _end_head(self) -> None:
        self._unparsed_bytes = 0
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
