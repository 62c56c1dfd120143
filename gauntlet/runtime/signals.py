"""How a process ends on signals: in order, and not amid an import, where an exception may be lost."""

import logging
import os
import signal
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn


class Ended(SystemExit):
    """A signal ends this process."""


def end_in_order() -> None:
    """Let SIGTERM, and a closed terminal, end this process as Ctrl-C does: what is open is closed.

    A signal that is ignored stays so: `nohup` ignores that of a closed terminal.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _end)


def _end(number: int, _frame: object) -> NoReturn:
    if number == signal.SIGHUP:
        _leave_terminal()
    raise Ended(128 + number)


def _leave_terminal() -> None:
    """Send output to nowhere: to write to a terminal that was closed is an error."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for output in (1, 2):
        if stat.S_ISCHR(os.fstat(output).st_mode):
            os.dup2(nowhere, output)
    os.close(nowhere)


@contextmanager
def signals_held_back(note: str) -> Iterator[None]:
    """Finish what is inside before a signal ends this process, however often they come; `note` is logged."""
    if threading.current_thread() is not threading.main_thread():  # the only one that signals interrupt
        yield
        return
    received: list[int] = []

    def hold(number: int, _frame: object) -> None:
        received.append(number)
        if number == signal.SIGHUP:
            _leave_terminal()
        logging.getLogger("gauntlet").warning(note)

    ends = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {n: signal.signal(n, hold) for n in ends if signal.getsignal(n) is not signal.SIG_IGN}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if received:
        signal.raise_signal(received[0])
