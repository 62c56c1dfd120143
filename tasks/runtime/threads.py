"""How many threads this process may really use: neither ONNX Runtime nor numpy asks the container."""

import os
from pathlib import Path

from tasks.runtime.cgroup import GROUPS, MEMBERSHIP, folders

LANES = 4
"""Calls side by side at most: each keeps its own activations in memory."""


def lanes() -> tuple[int, int]:
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
    new, old = folders("cpu", root, membership)
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
