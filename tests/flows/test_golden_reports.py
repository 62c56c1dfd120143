"""Presets end as they did: five with the same stages, candidates, checks and facts; that of Flax within its limits."""

import json
from pathlib import Path

import golden_reports
import pytest
from harness import RACE, command, sets

NIGHTLY = ("digits-resnet18", "digits-detection", "bring-your-own-onnx")


@pytest.mark.slow
@pytest.mark.parametrize(
    "preset", [pytest.param(name, marks=[pytest.mark.nightly] * (name in NIGHTLY)) for name in golden_reports.RUNS]
)
def test_report_of_a_preset_is_the_golden_one(
    preset: str, prefect_server: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if preset == "digits-small-cnn":
        current = golden_reports.frozen(request.getfixturevalue("finished"))
    else:
        current = golden_reports.run(preset, tmp_path)
    changes = list(golden_reports.differences(golden_reports.golden(preset), current))
    if changes:
        pytest.fail(
            f"{preset}: its report differs from tests/golden/{preset}.json. If that is meant, write it anew: "
            f"python tests/golden_reports.py {preset}\n" + "\n".join(changes),
            pytrace=False,
        )


@pytest.mark.nightly
def test_preset_ends_with_a_winner_within_its_limits_when_it_runs(tmp_path: Path) -> None:
    done = command(tmp_path, "run", "digits-cnn-flax", *sets(*RACE))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Warning" not in done.stdout + done.stderr
    (run,) = (tmp_path / ".gauntlet" / "runs").iterdir()
    report = json.loads((run / "report.json").read_text())
    assert report["winner"]
    checks = {c["name"]: c for s in report["stages"] if s["candidate"] is None for c in s["checks"]}
    assert all(c["passed"] for c in checks.values() if c["severity"] == "error")
