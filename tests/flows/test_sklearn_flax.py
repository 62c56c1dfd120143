"""The preset of Flax, from the command line to a winner; those of PyTorch and scikit-learn are golden reports."""

import json
from pathlib import Path

import pytest
from harness import RACE, command, sets


@pytest.mark.slow
def test_preset_ends_with_a_winner_within_its_limits_when_it_runs(tmp_path: Path) -> None:
    done = command(tmp_path, "run", "digits-cnn-flax", *sets(*RACE))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Warning" not in done.stdout + done.stderr
    (run,) = (tmp_path / ".gauntlet" / "runs").iterdir()
    report = json.loads((run / "report.json").read_text())
    assert report["winner"]
    checks = {c["name"]: c for s in report["stages"] if s["candidate"] is None for c in s["checks"]}
    assert all(c["passed"] for c in checks.values() if c["severity"] == "error")
