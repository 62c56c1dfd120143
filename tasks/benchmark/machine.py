"""What else happened on the machine during a race, and what the race cost in energy, where the system tells."""

import contextlib
import os
from pathlib import Path
from time import monotonic
from typing import Self

import psutil
from pydantic import Field

from tasks.frozen import Frozen, Number

POWER = Path("/sys/class/powercap")


class Machine(Frozen):
    """The company that a race had."""

    load_average: tuple[Number, Number] = Field(description="one-minute load of the machine, before and after")
    steal_share: Number = Field(description="share of the processors' time that the hypervisor gave to others")
    foreign_cores: Number = Field(description="processors that were busy with anything but this race, on average")
    energy: str = Field(description="where energy was read, or why it was not")


class Watch:
    """Counts the machine's processor time from its creation on."""

    def __init__(self) -> None:
        self._load, self._start = os.getloadavg()[0], monotonic()
        self._before, self._ours = psutil.cpu_times(), _own_seconds()

    def notes(self, meter: "EnergyMeter", workers_seconds: float) -> Machine:
        """Return what was seen since then.

        Args:
            meter: of the race.
            workers_seconds: processor time of the race's own workers, in seconds.
        """
        now = psutil.cpu_times()
        spent = {name: getattr(now, name) - getattr(self._before, name) for name in now._fields}
        steal = spent.get("steal", 0.0)
        # guest time is part of user time; waiting for a disk is no work
        idle = {"idle", "iowait", "steal", "guest", "guest_nice"}
        busy = sum(seconds for name, seconds in spent.items() if name not in idle)
        whole = busy + steal + spent["idle"] + spent.get("iowait", 0.0)
        foreign = busy - workers_seconds - (_own_seconds() - self._ours)
        return Machine(
            load_average=(self._load, os.getloadavg()[0]),
            steal_share=steal / whole if whole > 0 else 0.0,
            foreign_cores=max(0.0, foreign / max(monotonic() - self._start, 1e-9)),
            energy=meter.told,
        )


def processor_seconds(pid: int) -> float:
    """Return the processor time of a process and all that it started, so far; of those that are gone, 0."""
    spent = 0.0
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        for one in (process, *process.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                times = one.cpu_times()
                spent += times.user + times.system
    return spent


def _own_seconds() -> float:
    return float(sum(os.times()[:2]))


class EnergyMeter:
    """The processors' own energy counters (RAPL, as Linux shows them under `powercap`)."""

    def __init__(self, packages: tuple[Path, ...], told: str) -> None:
        self._packages, self.told = packages, told
        self._wrap = [int((package / "max_energy_range_uj").read_text()) for package in packages]

    @classmethod
    def find(cls, root: Path = POWER) -> Self:
        """Return a meter of all processor packages; one without any says why."""
        try:
            packages = tuple(sorted(p for p in root.iterdir() if (p / "name").read_text().startswith("package")))
            if not packages:
                return cls((), f"not read: {root} has no counter of a processor package")
            for package in packages:
                (package / "energy_uj").read_text()
            return cls(packages, f"read from {len(packages)} processor package(s); whatever else runs is in it")
        except PermissionError:
            return cls((), "not read: the counters are only for the administrator")
        except OSError:
            return cls((), f"not read: this system has no {root}")

    def read_uj(self) -> list[int]:
        """Return the counters, in microjoules."""
        return [int((package / "energy_uj").read_text()) for package in self._packages]

    def spent_mj(self, before_uj: list[int]) -> float | None:
        """Return the energy since an earlier reading in millijoules, or None where there is no counter."""
        if not self._packages:
            return None
        pairs = zip(self.read_uj(), before_uj, self._wrap, strict=True)
        return sum((now - before) % wrap if now < before else now - before for now, before, wrap in pairs) / 1000
