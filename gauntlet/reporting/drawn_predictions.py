"""The drawing of test images with predictions that a stage has stored, for the page."""

import base64
from pathlib import Path
from typing import Any

from gauntlet.core.run_report import RunReport
from gauntlet.problems.prediction_sheet import DRAWINGS
from gauntlet.reporting import timeline


def prepare(report: RunReport, store: Path) -> dict[str, Any] | None:
    """Return the drawing of the winner's predictions, or of the reference's where the winner has none.

    None where no stage has drawn any, or where the file is no longer in the artifact store.
    """
    best = timeline.winner(report)
    compared = report.stage("accuracy", best.name) if best is not None else None
    for entry in (compared, report.stage("evaluate")):
        artifact = entry.artifacts.get(DRAWINGS) if entry is not None else None
        if entry is not None and artifact is not None and (store / artifact.path).is_file():
            content = base64.b64encode((store / artifact.path).read_bytes()).decode()
            return {"address": f"data:image/jpeg;base64,{content}", "candidate": entry.candidate}
    return None
