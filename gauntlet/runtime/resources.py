"""What this process may use, and what it has used: threads, memory, processor time.

Neither ONNX Runtime nor numpy asks the container for its limits; cgroups(7) says where they are written, in version 2
and in version 1. Importing this imports the standard library alone: a worker may have nothing else.
"""

import contextlib
import os
import resource
import sys
from pathlib import Path

GROUPS, MEMBERSHIP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
LANES = 4
"""Calls side by side at most: each keeps its own activations in memory."""


def parallel_calls_and_threads() -> tuple[int, int]:
    """Return how many calls of one model to run side by side when many samples wait, and the threads for each.

    A kernel that does not use its threads well leaves them idle; calls side by side do not.
    """
    threads = usable_threads()
    count = min(threads, LANES)
    return count, threads // count


def usable_threads() -> int:
    """Return the smaller of the affinity mask and the cgroup's CPU quota (v2, then v1), at least 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cgroup_quota_cores()
    return max(1, min(cores, int(quota))) if quota else max(1, cores)  # a thread more than the quota is throttled


def cgroup_quota_cores(root: Path = GROUPS, membership: Path = MEMBERSHIP) -> float | None:
    """Return the CPU quota in cores, the least of this process's group and of all above; None where there is no limit.

    Args:
        root: where the groups are mounted.
        membership: the file that names the process's groups.
    """
    new, old = _group_folders("cpu", root, membership)
    quotas = [_quota(group / "cpu.max") for group in new]
    if not any(quotas):
        quotas = [_old_quota(group) for group in old]
    return min((quota for quota in quotas if quota), default=None)


def _quota(file: Path) -> float | None:
    """Return what a file of version 2 says, `QUOTA PERIOD` in microseconds."""
    try:
        quota, period = file.read_text().split()
    except (OSError, ValueError):
        return None
    return None if quota == "max" else float(quota) / float(period)


def _old_quota(group: Path) -> float | None:
    """Return what two files of version 1 say."""
    try:
        quota, period = ((group / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
    except OSError:
        return None
    return None if quota == "-1" else float(quota) / float(period)


def usable_memory_bytes(root: Path = GROUPS, membership: Path = MEMBERSHIP) -> int:
    """Return the least of the physical memory and the limits of this process's groups (v2 and v1) and all above.

    Args:
        root: where the groups are mounted.
        membership: the file that names the process's groups.
    """
    new, old = _group_folders("memory", root, membership)
    files = [*(group / "memory.max" for group in new), *(group / "memory.limit_in_bytes" for group in old)]
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([physical, *(limit for file in files if (limit := _limit(file)))])


def _limit(file: Path) -> int | None:
    """Return what a file says; None where it is not there, or says `max`."""
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None


def _group_folders(controller: str, root: Path, membership: Path) -> tuple[list[Path], list[Path]]:
    """Return the folders of this process's group and of all above it, the nearest first: version 2's, version 1's.

    Args:
        controller: what limits, as version 1 names it.
        root: where the groups are mounted.
        membership: the file that names the process's groups, `ID:CONTROLLERS:PATH` a line.
    """
    try:
        lines = [line.split(":", 2) for line in membership.read_text().splitlines()]
    except OSError:
        lines = []
    unified = next((path for _, controllers, path in lines if not controllers), "/")
    old = next((path for _, controllers, path in lines if controller in controllers.split(",")), "/")
    return _and_above(root, unified), _and_above(root / controller, old)


def _and_above(root: Path, path: str) -> list[Path]:
    """Return a group's folder and those above it, as far as they are there: a container may see only the root."""
    parts = [part for part in path.split("/") if part not in ("", "..")]
    return [root.joinpath(*parts[:count]) for count in range(len(parts), -1, -1)]


def peak_rss_bytes() -> int:
    """Return this process's largest resident memory so far."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
    except (OSError, StopIteration):  # after exec, getrusage still counts the parent's memory
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def processor_seconds(pid: int) -> float:
    """Return the processor time of a process and all that it started, so far; of those that are gone, 0."""
    import psutil

    spent = 0.0
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        for one in (process, *process.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                times = one.cpu_times()
                spent += times.user + times.system
    return spent
