"""The machine's other work is seen during a race."""

import subprocess
import sys
from time import monotonic

from gauntlet.race.machine_load import LoadMonitor


def test_foreign_work_is_seen_when_another_process_is_busy() -> None:
    busy = [sys.executable, "-c", "from time import *\nend = monotonic() + 60\nwhile monotonic() < end: pass"]
    watch = LoadMonitor()
    with subprocess.Popen(busy) as other:
        try:
            end = monotonic() + 1
            while monotonic() < end:
                other.poll()
        finally:
            other.kill()
    assert watch.notes(0.0, realtime=False).other_load_cores > 0.3
