"""Energy counters and the machine's other work: read where they are, and told why not where they are not."""

from pathlib import Path

import pytest

from gauntlet.benchmarking.machine_load import EnergyMeter, LoadMonitor


@pytest.fixture
def counters(tmp_path: Path) -> Path:
    """Return a folder as Linux shows it on a machine with two packages, of which each has a part of its own."""
    for name, told in {"intel-rapl:0": "package-0", "intel-rapl:0:0": "core", "intel-rapl:1": "package-1"}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "name").write_text(f"{told}\n")
        (tmp_path / name / "energy_uj").write_text("1000\n")
        (tmp_path / name / "max_energy_range_uj").write_text("262143328850\n")
    return tmp_path


def test_energy_is_summed_over_packages_when_counters_are_there(counters: Path) -> None:
    meter = EnergyMeter.find(counters)
    assert meter.status.startswith("read from 2 processor package(s)")
    before = meter.read_uj()
    (counters / "intel-rapl:0" / "energy_uj").write_text("6000\n")
    (counters / "intel-rapl:1" / "energy_uj").write_text("3000\n")
    assert meter.spent_mj(before) == 7.0


def test_energy_is_right_when_a_counter_starts_again(counters: Path) -> None:
    (counters / "intel-rapl:0" / "energy_uj").write_text("262143328000\n")
    meter = EnergyMeter.find(counters)
    before = meter.read_uj()
    (counters / "intel-rapl:0" / "energy_uj").write_text("1150\n")
    assert meter.spent_mj(before) == 2.0


def test_energy_is_none_with_a_reason_when_it_cannot_be_read(tmp_path: Path) -> None:
    for meter, told in (
        (EnergyMeter.find(tmp_path / "absent"), "does not exist"),
        (EnergyMeter.find(tmp_path), "has no counter of a processor package"),
    ):
        assert told in meter.status
        assert meter.spent_mj(meter.read_uj()) is None


def test_foreign_work_is_seen_when_another_process_is_busy(tmp_path: Path) -> None:
    import subprocess
    import sys
    from time import monotonic

    busy = [sys.executable, "-c", "from time import *\nend = monotonic() + 60\nwhile monotonic() < end: pass"]
    watch = LoadMonitor()
    with subprocess.Popen(busy) as other:
        try:
            end = monotonic() + 1
            while monotonic() < end:
                other.poll()
        finally:
            other.kill()
    assert watch.notes(EnergyMeter.find(tmp_path), 0.0).other_load_cores > 0.3
