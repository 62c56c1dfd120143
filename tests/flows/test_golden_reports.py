"""Five presets end as they did: the same stages, candidates, checks and facts."""

from pathlib import Path

import golden_reports
import pytest

NIGHTLY = ("digits-resnet18", "digits-detection")
"""Further networks of PyTorch; the wing of detection runs a detector at every change."""


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
