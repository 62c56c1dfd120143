"""How many threads this process may really use: neither ONNX Runtime nor numpy asks the container."""

import os
from pathlib import Path

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
    return max(1, min(cores, round(quota))) if quota else max(1, cores)


def cgroup_quota_cores(root: Path = Path("/sys/fs/cgroup")) -> float | None:
    """Return the CPU quota in cores, or None where there is no limit."""
    try:
        quota, period = (root / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota = (root / "cpu" / "cpu.cfs_quota_us").read_text().strip()
            period = (root / "cpu" / "cpu.cfs_period_us").read_text().strip()
        except OSError:
            return None
    return None if quota in ("max", "-1") else float(quota) / float(period)
