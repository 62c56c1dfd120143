"""The presets of scikit-learn and Flax, from the command line to a winner."""

import json
from pathlib import Path

import pytest
from harness import command, sets

RACE = ("benchmark.batch_sizes=[1]", "benchmark.rounds=6", "benchmark.block_ms=5")
LIMITS = {"digits-hog-svm": (0.96, 1e-5), "digits-cnn-flax": (0.97, 1e-4)}


@pytest.mark.slow
@pytest.mark.parametrize("preset", LIMITS)
def test_preset_ends_with_a_winner_within_its_limits_when_it_runs(tmp_path: Path, preset: str) -> None:
    done = command(tmp_path, "run", preset, *sets(*RACE))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Warning" not in done.stdout + done.stderr
    (run,) = (tmp_path / ".gauntlet" / "runs").iterdir()
    report = json.loads((run / "report.json").read_text())
    accuracy, difference = LIMITS[preset]
    assert report["winner"]
    (fp32,) = (c for c in report["candidates"] if c["name"] == "fp32")
    assert fp32["accuracy"] >= accuracy
    checks = {c["name"]: c for s in report["stages"] if s["candidate"] is None for c in s["checks"]}
    assert all(c["passed"] for c in checks.values() if c["severity"] == "error")
    assert checks["numerics.max_abs_error"]["value"] <= difference
    assert checks["numerics.min_top1_agreement"]["value"] == 1
