"""How many threads and how much memory there really are; timed turns come first, and only while they last."""

import os
import subprocess
import sys
from pathlib import Path
from threading import Event, Thread

import psutil
import pytest
from harness import until

from gauntlet.core.errors import ConfigError
from gauntlet.race.machine_load import MachineLoad, is_realtime
from gauntlet.runtime import realtime, resources
from gauntlet.runtime.resources import (
    LANES,
    cgroup_quota_cores,
    parallel_calls_and_threads,
    usable_memory_bytes,
    usable_threads,
)

PHYSICAL = psutil.virtual_memory().total


V1 = "cpu/cpu.cfs_quota_us"
PERIOD = {"cpu/cpu.cfs_period_us": "100000\n"}


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu.max": "200000 100000\n"}, 2.0),
        ({"cpu.max": "25000 50000"}, 0.5),
        ({V1: "-1\n"} | PERIOD, None),
        ({V1: "50000\n"} | PERIOD, 0.5),
        ({"cpu.max": "100000 100000", V1: "400000"} | PERIOD, 1.0),  # version 2 counts
        ({"cpu.max": "", V1: "400000"} | PERIOD, 4.0),  # and where it is malformed, version 1
        ({}, None),
        ({"cpu.max": "max"}, None),
        ({V1: "400000"}, None),
    ],
)
def test_quota_is_read_in_both_versions_of_cgroup(tmp_path: Path, files: dict[str, str], cores: float | None) -> None:
    assert cgroup_quota_cores(write(tmp_path, files)) == cores


def test_quota_is_the_least_of_all_groups_above_when_version_2_nests_them(tmp_path: Path) -> None:
    nested = {"cpu.max": "max 100000", "job/cpu.max": "150000 100000", "job/step/cpu.max": "4 1"}
    write(tmp_path / "user", nested)
    membership = tmp_path / "cgroup"
    membership.write_text("9:name=systemd:/x\n0::/user/job/step\n")
    assert cgroup_quota_cores(tmp_path, membership) == 1.5
    membership.write_text("0::/another/machine/s\n")  # a container that sees the host's names, and its own root only
    assert cgroup_quota_cores(write(tmp_path, {"cpu.max": "300000 100000"}), membership) == 3.0


def test_quota_is_the_least_of_all_groups_above_when_version_1_nests_them(tmp_path: Path) -> None:
    write(tmp_path, {V1: "-1", "cpu/job/cpu.cfs_quota_us": "200000", "cpu/job/cpu.cfs_period_us": "100000"} | PERIOD)
    (tmp_path / "cgroup").write_text("3:cpuset:/\n2:cpu,cpuacct:/job\n")
    assert cgroup_quota_cores(tmp_path, tmp_path / "cgroup") == 2.0


@pytest.mark.parametrize(("quota", "threads_used"), [(1.9, 1), (0.4, 1), (1000.0, None), (None, None)])
def test_threads_never_exceed_the_quota(monkeypatch, quota: float | None, threads_used: int | None) -> None:
    monkeypatch.setattr(resources, "cgroup_quota_cores", lambda: quota)
    assert usable_threads() == (threads_used or len(os.sched_getaffinity(0)))


def test_threads_are_within_the_affinity_mask_when_asked_on_this_machine() -> None:
    before = os.sched_getaffinity(0)
    assert 1 <= usable_threads() <= len(before)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert usable_threads() == 1
    finally:
        os.sched_setaffinity(0, before)


@pytest.mark.parametrize(("usable", "expected"), [(1, (1, 1)), (2, (2, 1)), (6, (4, 1)), (64, (4, 16))])
def test_lanes_share_the_threads_when_many_samples_wait(
    monkeypatch: pytest.MonkeyPatch, usable: int, expected: tuple[int, int]
) -> None:
    monkeypatch.setattr(resources, "usable_threads", lambda: usable)
    count, each = parallel_calls_and_threads()
    assert (count, each) == expected
    assert count <= LANES
    assert count * each <= usable


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


IDLE = "import time; time.sleep(60)"
permitted = pytest.mark.skipif(not realtime.is_permitted(), reason="this user may not use SCHED_FIFO")


def policies() -> set[int]:
    return {os.sched_getscheduler(int(thread.name)) for thread in realtime.TASKS.iterdir()}


@permitted
def test_every_thread_has_the_policy_for_the_turn_alone() -> None:
    done = Event()
    Thread(target=done.wait).start()
    with pytest.raises(ValueError, match="in the turn"), realtime.realtime_turn():
        assert policies() == {os.SCHED_FIFO}
        Thread(target=done.wait).start()
        raise ValueError("in the turn")
    assert policies() == {os.SCHED_OTHER}  # of the thread that began in it, too
    done.set()


@permitted
def test_kernel_ends_a_turn_that_waits_for_nothing() -> None:
    turn = "from gauntlet.runtime import realtime as r; r.WATCHDOG_S = 1\nwith r.realtime_turn():\n while True: pass"
    assert subprocess.run([sys.executable, "-c", turn], timeout=60, check=False).returncode < 0


@permitted
def test_watchdog_counts_each_turn_for_itself() -> None:
    turns = """
from time import monotonic
from gauntlet.runtime import realtime as r
r.WATCHDOG_S = 1
for _ in range(25):
    with r.realtime_turn():
        end = monotonic() + 0.06
        while monotonic() < end: pass
"""
    assert subprocess.run([sys.executable, "-c", turns], timeout=60, check=False).returncode == 0


@permitted
def test_auto_leaves_the_processors_to_a_server() -> None:
    until(lambda: is_realtime("auto"))  # another worker's test may serve
    with subprocess.Popen([sys.executable, "-c", IDLE, "flows.cli.main", "serve", "m.zip"]) as server:
        try:
            assert not is_realtime("auto")
            assert is_realtime("realtime")
        finally:
            server.kill()
    assert not is_realtime("normal")


@pytest.mark.skipif(os.getuid() != 0, reason="only root has a right to give up")
def test_user_without_the_right_is_told_how_to_get_it() -> None:
    code = "from gauntlet.race.machine_load import is_realtime as r; print(r('auto'), flush=True); r('realtime')"
    without = "setpriv", "--bounding-set=-sys_nice", "--inh-caps=-sys_nice"
    done = subprocess.run([*without, sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "False\n"
    assert (
        "benchmark.priority, or GAUNTLET_PRIORITY: realtime is not permitted to this user. Fix: give it an rtprio"
        in done.stderr
    )


def test_one_variable_is_the_priority_of_all_races_without_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gauntlet.race.machine_load.is_permitted", lambda: True)
    monkeypatch.setattr("gauntlet.race.machine_load._serves", lambda: True)
    monkeypatch.setenv("GAUNTLET_PRIORITY", "realtime")
    assert [is_realtime(priority) for priority in ("auto", "realtime", "normal")] == [True, True, False]
    monkeypatch.setenv("GAUNTLET_PRIORITY", "normal")
    assert [is_realtime(priority) for priority in ("auto", "realtime", "normal")] == [False, True, False]
    monkeypatch.setenv("GAUNTLET_PRIORITY", "high")
    with pytest.raises(ConfigError, match="GAUNTLET_PRIORITY: expected auto, normal or realtime, got 'high'"):
        is_realtime("auto")


def test_race_is_disturbed_by_work_that_needs_its_processors() -> None:
    cores = os.cpu_count() or 1
    quiet = MachineLoad(load_average=(0, 0), steal_share=0, other_load_cores=0.05, exposed=(8,))
    assert not quiet.is_disturbed(cores)
    busy = quiet.replace(other_load_cores=1.0)
    assert busy.is_disturbed(cores)
    assert "intervals at batch 8 cover the processor time of one thread" in busy.text(cores)
    assert not busy.replace(exposed=()).is_disturbed(cores)
    assert busy.replace(exposed=(), steal_share=0.2).is_disturbed(cores)
