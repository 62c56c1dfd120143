"""Timed turns come before ordinary programs, and only while they last."""

import os
import subprocess
import sys
from threading import Event, Thread

import pytest

from gauntlet.race.machine_load import MachineLoad, is_realtime
from gauntlet.runtime import realtime

IDLE = "import time; time.sleep(60)"
permitted = pytest.mark.skipif(not realtime.is_permitted(), reason="this user may not use SCHED_FIFO")


def policies() -> set[int]:
    return {os.sched_getscheduler(int(thread.name)) for thread in realtime.TASKS.iterdir()}


@permitted
def test_every_thread_has_the_policy_for_the_turn_alone() -> None:
    done = Event()
    thread = Thread(target=done.wait)
    thread.start()
    with pytest.raises(ValueError, match="in the turn"), realtime.realtime_turn():
        assert policies() == {os.SCHED_FIFO}
        late = Thread(target=done.wait)
        late.start()
        raise ValueError("in the turn")
    assert policies() == {os.SCHED_OTHER}  # of the thread that began in it, too
    done.set()


@permitted
def test_kernel_ends_a_turn_that_waits_for_nothing() -> None:
    turn = "from gauntlet.runtime import realtime as r; r.WATCHDOG_S = 1\nwith r.realtime_turn():\n while True: pass"
    assert subprocess.run([sys.executable, "-c", turn], timeout=60, check=False).returncode < 0


@permitted
def test_auto_leaves_the_processors_to_a_server() -> None:
    assert is_realtime("auto")
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
        "StageError: benchmark.priority: realtime is not permitted to this user. Fix: give it an rtprio" in done.stderr
    )


def test_race_is_disturbed_by_work_that_needs_its_processors() -> None:
    cores = os.cpu_count() or 1
    quiet = MachineLoad(load_average=(0, 0), steal_share=0, other_load_cores=0.05, exposed=(8,))
    assert not quiet.is_disturbed(cores)
    busy = quiet.replace(other_load_cores=1.0)
    assert busy.is_disturbed(cores)
    assert "intervals at batch 8 cover the processor time of one thread" in busy.text(cores)
    assert not busy.replace(exposed=()).is_disturbed(cores)
    assert busy.replace(exposed=(), steal_share=0.2).is_disturbed(cores)
