"""Head and body of a response leave together, a client that does not read is left, and a form has no charset."""

import asyncio
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

import pytest
from starlette import formparsers
from starlette.requests import Request

from serving.body import uploaded_files
from serving.http_protocol import JoinedWrites, JoiningProtocol
from serving.settings import Limits


class Recorded(asyncio.Transport):
    """Notes what is sent."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[bytes] = []
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent.append(bytes(data))

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True


def written(*parts: bytes, close: bool = False) -> list[bytes]:
    """Return what is sent of writes in one step of the event loop."""
    transport = Recorded()

    async def scenario() -> None:
        joined = JoinedWrites(transport, asyncio.get_running_loop().call_soon)
        for part in parts:
            joined.write(part)
        if close:
            joined.close()
            assert transport.closed
        await asyncio.sleep(0)

    asyncio.run(scenario())
    return transport.sent


def test_head_and_body_are_one_write() -> None:
    assert written(b"head", b"body") == [b"headbody"]


def test_nothing_is_lost_or_sent_twice() -> None:
    assert written(b"head") == [b"head"]
    assert written(b"head", b"") == [b"head"]
    assert written(b"head", b"one", b"two", b"three", b"four") == [b"headone", b"twothree", b"four"]


def test_what_is_kept_leaves_before_the_connection_closes() -> None:
    assert written(b"head", close=True) == [b"head"]
    assert written(b"head", b"body", close=True) == [b"headbody"]


def test_client_that_takes_nothing_of_a_response_is_left_and_a_slow_one_is_not() -> None:
    timers, unsent, ended = list[Callable[[], None]](), list[int](), list[str]()
    protocol = object.__new__(JoiningProtocol)
    flow = {"pause_writing": lambda: None, "resume_writing": lambda: None}
    protocol.flow = SimpleNamespace(**flow)  # type: ignore[assignment]
    protocol.transport = SimpleNamespace(  # type: ignore[assignment]
        get_write_buffer_size=unsent.pop, abort=lambda: ended.append("aborted")
    )

    def call_later(_: float, call: Callable[[int], None], size: int) -> SimpleNamespace:
        timers.append(partial(call, size))
        return SimpleNamespace(cancel=lambda: ended.append("canceled"))

    protocol.loop = SimpleNamespace(call_later=call_later)  # type: ignore[assignment]
    unsent[:] = [700, 800, 900]
    protocol.pause_writing()
    timers.pop()()
    timers.pop()()
    assert (ended, len(timers)) == ([], 1)
    protocol.resume_writing()
    assert ended == ["canceled"]
    timers.clear()
    unsent[:] = [500, 500]
    protocol.pause_writing()
    timers.pop()()
    assert (ended, timers) == (["canceled", "aborted"], [])


def test_charset_of_a_form_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """To decode a text of 200 kB as punycode takes a minute, in the event loop."""
    charsets, decode = set[str](), formparsers._user_safe_decode

    def recorded(text: bytes, charset: str) -> str:
        charsets.add(charset)
        return decode(text, charset)

    monkeypatch.setattr(formparsers, "_user_safe_decode", recorded)
    parts = (
        b'--x\r\ncontent-disposition: form-data; name="a"%s\r\n\r\nb-c\r\n' % more for more in (b"", b'; filename="f"')
    )
    kind = {"type": "http", "headers": [(b"content-type", b"Multipart/Form-Data; charset=punycode; boundary=x")]}
    files = uploaded_files(Request(kind), b"".join(parts) + b"--x--\r\n", Limits())
    assert (files, charsets) == ([b"b-c"], {"utf-8"})
