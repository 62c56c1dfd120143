"""What must end as a whole, whatever signals arrive: an exception raised amid an import may be lost there."""

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def signals_held_back(note: str) -> Iterator[None]:
    """Finish what is inside before Ctrl-C or SIGTERM ends this process, however often they come; `note` is logged."""
    if threading.current_thread() is not threading.main_thread():  # the only one that signals interrupt
        yield
        return
    received: list[int] = []

    def hold(number: int, _frame: object) -> None:
        received.append(number)
        logging.getLogger("gauntlet").warning(note)

    before = {number: signal.signal(number, hold) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if received:
        signal.raise_signal(received[0])
