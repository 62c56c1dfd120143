"""The environment, threads, memory and processor time that this process may use, and has used.

ONNX Runtime and NumPy ignore the container's limits, which are read here: cgroups(7), versions 2 and 1. This imports
the standard library alone, because a worker may have nothing else.
"""

import contextlib
import ctypes
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    import psutil

GROUPS, MEMBERSHIP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
LANES = 4
"""Most calls in parallel: each keeps its own activations in memory."""


@contextmanager
def environment_variables(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables, and restore them at the end."""
    before = {name: os.environ[name] for name in values if name in os.environ}
    os.environ |= values
    try:
        yield
    finally:
        for name in values.keys() - before.keys():
            os.environ.pop(name, None)
        os.environ |= before


def end_with_parent() -> None:
    """End this process when the thread that started it ends, even if it is killed; on Linux only (prctl(2))."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def parallel_calls_and_threads() -> tuple[int, int]:
    """Return how many calls to run in parallel on many samples, so that no thread is idle, and the threads for each."""
    threads = usable_threads()
    count = min(threads, LANES)
    return count, threads // count


def usable_threads() -> int:
    """Return the smaller of the affinity mask and the cgroup's CPU quota (v2, then v1), at least 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cgroup_quota_cores()
    return max(1, min(cores, int(quota))) if quota else max(1, cores)  # one thread above the quota is throttled


def cgroup_quota_cores(root: Path = GROUPS, membership: Path = MEMBERSHIP) -> float | None:
    """Return the CPU quota in cores, the least of this process's group and its parents; None without a limit."""
    new, old = _group_folders("cpu", root, membership)
    quotas = [_cores(group / "cpu.max") for group in new]
    if not any(quotas):
        quotas = [_cores(group / "cpu.cfs_quota_us", group / "cpu.cfs_period_us") for group in old]
    return min((quota for quota in quotas if quota), default=None)


def _cores(*files: Path) -> float | None:
    """Return quota / period, which are in one file or in two; None where they are missing, `max` or -1."""
    try:
        quota, period = (float(number) for file in files for number in file.read_text().split())
    except (OSError, ValueError):
        return None
    return None if quota < 0 else quota / period


def usable_memory_bytes(root: Path = GROUPS, membership: Path = MEMBERSHIP) -> int:
    """Return the least of the physical memory and the limits of this process's groups (v2 and v1) and their parents."""
    new, old = _group_folders("memory", root, membership)
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for file in (*(group / "memory.max" for group in new), *(group / "memory.limit_in_bytes" for group in old)):
        with contextlib.suppress(OSError, ValueError):  # missing, or `max`
            limits.append(int(file.read_text()))
    return min(limits)


def _group_folders(controller: str, root: Path, membership: Path) -> tuple[list[Path], list[Path]]:
    """Return the folders of this process's groups and their parents, the nearest first: version 2's, version 1's.

    `membership` has one line `ID:CONTROLLERS:PATH` per group, without controllers in version 2.
    """
    try:
        lines = [line.split(":", 2) for line in membership.read_text().splitlines()]
    except OSError:
        lines = []
    unified = next((path for _, controllers, path in lines if not controllers), "/")
    old = next((path for _, controllers, path in lines if controller in controllers.split(",")), "/")
    return _with_parents(root, unified), _with_parents(root / controller, old)


def _with_parents(root: Path, path: str) -> list[Path]:
    parts = [part for part in path.split("/") if part not in ("", "..")]
    return [root.joinpath(*parts[:count]) for count in range(len(parts), -1, -1)]


def peak_rss_bytes() -> int:
    """Return this process's largest resident memory so far."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
    except (OSError, StopIteration):  # after exec, getrusage still counts the parent's memory
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def processor_seconds(pid: int, *, children: bool = True) -> float:
    """Return the processor time of a process and all that it started, so far; 0 for those that have ended."""
    return sum_over_processes(pid, lambda process: sum(process.cpu_times()[:2]), children=children)


def sum_over_processes(pid: int, measure: Callable[["psutil.Process"], float], *, children: bool = True) -> float:
    """Return the sum of a measure over a process and all that it started, without those that have ended."""
    import psutil

    total = 0.0
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        for member in (process, *(process.children(recursive=True) if children else ())):
            with contextlib.suppress(psutil.Error):
                total += measure(member)
    return total


DRIVERS = ("libcuda.so.1", "nvcuda.dll")


@lru_cache
def has_gpu() -> bool:
    """Return whether the driver shows a GPU to this process; `CUDA_VISIBLE_DEVICES` may hide all of them."""
    for name in DRIVERS:
        try:
            driver = ctypes.CDLL(name)
        except OSError:
            continue
        count = ctypes.c_int(0)
        return driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0
    return False


class ResourceUsage:
    """A context manager; `seconds` and `peak_rss_bytes` are set on exit."""

    seconds: float = 0.0
    peak_rss_bytes: int = 0

    def __enter__(self) -> Self:
        with contextlib.suppress(OSError):  # Linux: 5 resets the peak, so that it is this work's alone
            Path("/proc/self/clear_refs").write_text("5")
        self._start = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.monotonic() - self._start
        self.peak_rss_bytes = peak_rss_bytes()
