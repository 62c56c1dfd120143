"""The control groups of this process, where a container's limits are written: cgroups(7), version 2 and version 1."""

from pathlib import Path

GROUPS, MEMBERSHIP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def folders(controller: str, root: Path = GROUPS, membership: Path = MEMBERSHIP) -> tuple[list[Path], list[Path]]:
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
