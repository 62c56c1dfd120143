"""Head and body of a response leave together."""

import asyncio

from serving.http_protocol import JoinedWrites


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
