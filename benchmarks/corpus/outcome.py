"""What became of the candidates of a run: which of them failed for a reason that is not about accuracy or speed."""

from gauntlet.core.run_report import RunReport

TECHNICAL_STAGES = ("export", "structure", "calibrate")
"""Their checks are about a file that is not valid or ranges that were not found, not about accuracy or speed."""
BROKE = " broke: "
"""In a candidate's reason, after the name of a stage that ended without a report."""
NOT_FLOAT32 = "the recipes quantize float32 models"
"""In the reason of candidates of a model that is quantized, float16 or float64 already."""


def technical_rejections(report: RunReport) -> dict[str, str]:
    """Return the candidates that a broken stage or an invalid file rejected -> the reason.

    The run itself is listed under its name where it failed: a model from outside is its own reference.
    """
    found = {c.name: c.reason for c in report.candidates if c.status == "rejected" and BROKE in c.reason}
    for entry in report.stages:
        blocked = [check for check in entry.checks if check.blocks]
        if blocked and entry.stage in TECHNICAL_STAGES:
            found.setdefault(entry.candidate or report.name, str(blocked[0]))
    if report.verdict == "failed":
        found.setdefault(report.name, report.reason)
    return found


def inapplicable(report: RunReport) -> dict[str, str]:
    """Return the recipes that do not apply, because there is nothing to quantize, or the model is not float32."""
    reasons = {c.name: c.reason for c in report.candidates if NOT_FLOAT32 in c.reason}
    checks = {e.candidate: c for e in report.stages if e.stage == "quantize" for c in e.checks if c.blocks}
    return reasons | {str(name): check.detail for name, check in checks.items()}
