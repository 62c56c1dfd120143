"""`gauntlet up --serve` alone: a stream drifts, its model is retrained once, and a killed server loses nothing."""

import shutil
from pathlib import Path

import pytest
from day_in_an_hour import LIMITS, NAME, Day, live
from running_platform import RunningPlatform, until

from wings.lifecycle.library.promotion.ledger import Ledger


@pytest.mark.nightly
@pytest.mark.timeout(2400)
def test_drifting_stream_is_retrained_once_and_predicted_again(finished_home: Path, tmp_path: Path) -> None:
    shutil.copytree(finished_home / ".gauntlet", tmp_path / ".gauntlet")
    platform = RunningPlatform(tmp_path, NAME)
    day = Day(platform, kills=("serving",))
    try:
        told = platform.up("--watch-every", "5", *LIMITS, "--max-accuracy-drop", "0.3")
        assert "there is no model yet" in told
        done = platform.gauntlet("promote", platform.home.run_folders()[-1].name)
        assert done.returncode == 0, done.stdout + done.stderr
        until(platform.version, "the first champion is served")
        found = live(day, drifted=400)
        watch = platform.status()["watch"]
    finally:
        platform.down()
    morning, noon, evening = (phase.accuracy for phase in day.phases)
    assert (noon < 0.6 < evening, evening > noon + 0.2, morning > 0.9) == (True, True, True), found.figures
    missed = {one.name for one in found.figures if one.met is False and one.unit != "%"}
    assert not missed, found.figures
    assert [one.version for one in day.phases[:2]] == [day.phases[0].version] * 2 != [day.phases[2].version] * 2
    ledger = Ledger.of(platform.home.root, NAME).entries()
    assert [entry.op for entry in ledger] == ["promote", "commit", "promote", "commit"]
    assert (watch["name"], watch["every_s"]) == (NAME, 5)
    assert watch["looked_at"]
