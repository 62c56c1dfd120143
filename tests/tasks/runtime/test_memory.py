"""How much memory there really is: the container's limit, in both of its forms, and never more than the machine's."""

from pathlib import Path

import psutil
import pytest

from tasks.runtime.memory import usable_memory_bytes

PHYSICAL = psutil.virtual_memory().total


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "usable"),
    [
        ({}, PHYSICAL),
        ({"memory.max": "max\n"}, PHYSICAL),
        ({"memory.max": "rubbish"}, PHYSICAL),
        ({"memory.max": "1000000\n"}, 1_000_000),
        ({"memory.max": f"{PHYSICAL * 2}\n"}, PHYSICAL),
        ({"memory.max": "max\n", "job/memory.max": "700", "job/step/memory.max": "900"}, 700),
        ({"memory/memory.limit_in_bytes": "9223372036854771712\n"}, PHYSICAL),
        ({"memory/memory.limit_in_bytes": "2000000\n"}, 2_000_000),
        ({"memory/memory.limit_in_bytes": "9223372036854771712", "memory/pod/memory.limit_in_bytes": "600"}, 600),
    ],
)
def test_usable_memory_is_the_least_of_the_machine_and_of_all_groups(
    tmp_path: Path, files: dict[str, str], usable: int
) -> None:
    membership = tmp_path / "membership"
    membership.write_text("4:memory:/pod\n1:cpu:/\n0::/job/step\n")
    assert usable_memory_bytes(write(tmp_path, files), membership) == usable


def test_usable_memory_is_the_machines_when_nobody_tells_the_group(tmp_path: Path) -> None:
    assert usable_memory_bytes(tmp_path, tmp_path / "absent") == PHYSICAL
