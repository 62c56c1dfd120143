"""Load of the machine during a race, and energy of the race where the system reports it."""

import os
from pathlib import Path
from time import monotonic
from typing import Self

import psutil
from pydantic import Field

from gauntlet.core.frozen import Frozen, Number

POWER = Path("/sys/class/powercap")


class MachineLoad(Frozen):
    """The load of the machine during a race."""

    load_average: tuple[Number, Number] = Field(description="one-minute load of the machine, before and after")
    steal_share: Number = Field(description="share of processor time that the hypervisor gave to other guests")
    other_load_cores: Number = Field(description="processors busy with other work than this race, on average")
    energy: str = Field(description="where energy was read, or why it was not")


class LoadMonitor:
    """Measures the machine's processor time from its creation on."""

    def __init__(self) -> None:
        self._load, self._start = os.getloadavg()[0], monotonic()
        self._before, self._ours = psutil.cpu_times(), sum(os.times()[:2])

    def notes(self, meter: "EnergyMeter", workers_seconds: float) -> MachineLoad:
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
            energy=meter.status,
        )


class EnergyMeter:
    """The processors' own energy counters (RAPL, which Linux provides under `powercap`)."""

    def __init__(self, packages: tuple[Path, ...], status: str) -> None:
        self._packages, self.status = packages, status
        self._wrap = [int((package / "max_energy_range_uj").read_text()) for package in packages]

    @classmethod
    def find(cls, root: Path = POWER) -> Self:
        """Return a meter of all processor packages; without any, its `status` says why."""
        try:
            packages = tuple(sorted(p for p in root.iterdir() if (p / "name").read_text().startswith("package")))
            if not packages:
                return cls((), f"not read: {root} has no counter of a processor package")
            meter = cls(packages, f"read from {len(packages)} processor package(s); includes other work on the machine")
            meter.read_uj()
        except PermissionError:
            return cls((), "not read: the counters are readable by root only")
        except OSError:
            return cls((), f"not read: {root} does not exist")
        return meter

    def read_uj(self) -> list[int]:
        """Return the counters, in microjoules."""
        return [int((package / "energy_uj").read_text()) for package in self._packages]

    def spent_mj(self, before_uj: list[int]) -> float | None:
        """Return the energy since an earlier reading in millijoules, or None where energy cannot be read."""
        if not self._packages:
            return None
        pairs = zip(self.read_uj(), before_uj, self._wrap, strict=True)
        return sum((now - before) % wrap if now < before else now - before for now, before, wrap in pairs) / 1000
