"""How much memory this process may really use: the machine's, or less where its container says so."""

import os
from pathlib import Path

from tasks.runtime.cgroup import GROUPS, MEMBERSHIP, folders


def usable_memory_bytes(root: Path = GROUPS, membership: Path = MEMBERSHIP) -> int:
    """Return the least of the physical memory and the limits of this process's groups (v2 and v1) and all above.

    Args:
        root: where the groups are mounted.
        membership: the file that names the process's groups.
    """
    new, old = folders("memory", root, membership)
    files = [*(group / "memory.max" for group in new), *(group / "memory.limit_in_bytes" for group in old)]
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([physical, *(limit for file in files if (limit := _limit(file)))])


def _limit(file: Path) -> int | None:
    """Return what a file says; None where it is not there, or says `max`."""
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None
