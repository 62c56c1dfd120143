"""Load of the machine during a race, and whether it may interrupt the timed turns."""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import PurePath
from time import monotonic

import psutil
from pydantic import Field

from gauntlet.core.errors import ConfigError, StageError
from gauntlet.core.frozen import Frozen, Number
from gauntlet.runtime.realtime import is_permitted

COMMANDS = {"gauntlet", "onnx-gauntlet", "flows.cli.main"}
"""Words of a command line, without their folders, that name the program whose `serve` may be at work."""
AUTO, PRIORITY = "auto", "GAUNTLET_PRIORITY"
MAX_SHARED = 0.1
"""Share of a race's processor time that others may have, too: one busy processor of two biases a ratio by a third."""


class MachineLoad(Frozen):
    """The load of the machine during a race."""

    load_average: tuple[Number, Number] = Field(description="one-minute load of the machine, before and after")
    steal_share: Number = Field(description="share of processor time that the hypervisor gave to other guests")
    other_load_cores: Number = Field(description="processors busy with other work than this race, on average")
    exposed: tuple[int, ...] = Field(description="batch sizes at which other programs could interrupt timed turns")

    def text(self, threads: int) -> str:
        """Return in a few words how busy the machine was, and what follows for calls with so many threads."""
        if self.is_disturbed(threads):
            where = "" if self.is_stolen else f" at batch {', '.join(map(str, self.exposed))}"
            follows = f", which disturbed the race: intervals{where} cover the processor time of one thread, too"
        else:
            follows = "" if self.exposed else ", which could not interrupt timed turns"
        return f"other work on the machine: {self.other_load_cores:.2g} cores{follows}"

    def is_disturbed(self, threads: int) -> bool:
        """Return whether calls with so many threads had to share their processors with other work, or other guests."""
        contended = threads + self.other_load_cores - (os.cpu_count() or 1)
        return self.is_stolen or bool(self.exposed and contended > MAX_SHARED * threads)

    @property
    def is_stolen(self) -> bool:
        """Whether other guests of the host took processor time, from turns of every kind."""
        return self.steal_share > MAX_SHARED


class LoadMonitor:
    """Measures the machine's processor time from its creation on."""

    def __init__(self) -> None:
        self._load, self._start = os.getloadavg()[0], monotonic()
        self._before, self._ours = psutil.cpu_times(), sum(os.times()[:2])

    def notes(self, workers_seconds: float, exposed: Iterable[int]) -> MachineLoad:
        """Return the load since the monitor was created, without the processor time of the race's own workers."""
        now = psutil.cpu_times()
        spent = {name: getattr(now, name) - getattr(self._before, name) for name in now._fields}
        steal = spent.get("steal", 0.0)
        # guest time is part of user time; waiting for a disk is not work
        idle = {"idle", "iowait", "steal", "guest", "guest_nice"}
        busy = sum(seconds for name, seconds in spent.items() if name not in idle)
        total = busy + steal + spent["idle"] + spent.get("iowait", 0.0)
        other_work = busy - workers_seconds - (sum(os.times()[:2]) - self._ours)
        return MachineLoad(
            load_average=(self._load, os.getloadavg()[0]),
            steal_share=steal / total if total > 0 else 0.0,
            other_load_cores=max(0.0, other_work / max(monotonic() - self._start, 1e-9)),
            exposed=tuple(exposed),
        )


def is_realtime(priority: str) -> bool:
    """Return whether timed turns run before ordinary programs: `realtime`, or `auto` where that is permitted.

    `auto` does not while `gauntlet serve` runs on this machine: its requests would wait. `$GAUNTLET_PRIORITY` takes the
    place of `auto`, in all races.

    Raises:
        ConfigError: when the variable has another value.
        StageError: when `realtime` is not permitted.
    """
    priority = os.environ.get(PRIORITY) or AUTO if priority == AUTO else priority
    if priority not in (AUTO, "normal", "realtime"):
        raise ConfigError(f"{PRIORITY}: expected auto, normal or realtime, got {priority!r}")
    permitted = priority != "normal" and is_permitted()
    if priority == "realtime" and not permitted:
        raise StageError(
            f"benchmark.priority, or {PRIORITY}: realtime is not permitted to this user. Fix: give it an rtprio limit "
            "of 1 (limits.conf; in a container, ulimit rtprio=1) or CAP_SYS_NICE, or set auto"
        )
    return permitted and (priority == "realtime" or not _serves())


def _serves() -> bool:
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            words = process.cmdline()
            if "serve" in words and any(PurePath(word).name in COMMANDS for word in words):
                return True
    return False
