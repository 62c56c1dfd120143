"""What became of a model of the corpus: its winner, and the candidates that failed for a reason of another kind."""

from typing import Self

from pydantic import Field

from gauntlet.core.frozen import Frozen, Number
from gauntlet.core.run_report import BenchmarkRow, RunReport
from tasks.quantize import QuantizeFacts

ACCURACY = ("accuracy.", "numerics.max_", "numerics.min_", "portability.", "repair.within_limits", "repair.nodes")
SPEED = (
    *("not proven ", "slower: ", "faster, but not ", "dropped after round "),
    *("repair.min_speedup", "optimize.same_graph", "optimize.accepted_passes"),
)
"""How a rejection begins that names accuracy or speed. Everything else is a technical fault."""
NOT_FLOAT32 = "the recipes quantize float32 models"
"""In the reason of candidates of a model that is quantized, float16 or float64 already."""
NOT_TRIED = "not tried: "
"""The reason of recipes that come when the time for `quantize: auto` is used up."""
QUANTIZER_FAILS = "ONNX Runtime's quantizer fails"


class Outcome(Frozen):
    """What one run came to."""

    name: str
    seconds: Number = 0
    size_bytes: int = 0
    winner: str | None = Field(None, description="None where the run failed")
    reason: str = ""
    row: BenchmarkRow | None = Field(None, description="the winner's, where it is not FP32")
    sqnr_db: Number | None = None
    technical: dict[str, str] = Field({}, description="candidate, or the run -> the fault")
    inapplicable: dict[str, str] = Field({}, description="recipe -> why it was not tried, or does not apply")
    rejected: dict[str, str] = Field({}, description="candidate -> the reason, which names accuracy or speed")
    left_out: dict[str, str] = Field({}, description="candidate -> why the quantizer failed with some of its nodes")

    @classmethod
    def of(cls, name: str, seconds: float, size_bytes: int, report: RunReport) -> Self:
        """Read what a run came to from its report."""
        technical, skipped = technical_rejections(report), inapplicable(report)
        reasons = {c.name: c.reason for c in report.candidates if c.status == "rejected"}
        winner = next((c for c in report.candidates if c.name == report.winner), None)
        faster = winner is not None and winner.benchmark and winner.benchmark[0].verdict != "reference"
        return cls(
            name=name,
            seconds=seconds,
            size_bytes=size_bytes,
            winner=report.winner,
            reason=report.reason,
            row=winner.benchmark[0] if winner and faster else None,
            sqnr_db=winner.sqnr_db if winner and faster else None,
            technical=technical,
            inapplicable=skipped,
            rejected={c: reason for c, reason in reasons.items() if c not in technical and c not in skipped},
            left_out=beyond_the_quantizer(report),
        )


def technical_rejections(report: RunReport) -> dict[str, str]:
    """Return the candidates whose rejection names neither accuracy nor speed -> the reason.

    The run itself is listed under its name where it failed: a model from outside is its own reference.
    """
    skipped = inapplicable(report)
    found = {
        c.name: c.reason
        for c in report.candidates
        if c.status == "rejected" and c.name not in skipped and not c.reason.startswith((*ACCURACY, *SPEED))
    }
    if report.verdict == "failed":
        found.setdefault(report.name, report.reason)
    return found


def inapplicable(report: RunReport) -> dict[str, str]:
    """Return the recipes that were not tried, or do not apply: nothing to quantize, or the model is not float32."""
    reasons = {c.name: c.reason for c in report.candidates if NOT_FLOAT32 in c.reason or NOT_TRIED in c.reason}
    checks = {e.candidate: c for e in report.stages if e.stage == "quantize" for c in e.checks if c.blocks}
    return reasons | {str(name): check.detail for name, check in checks.items()}


def beyond_the_quantizer(report: RunReport) -> dict[str, str]:
    """Return the candidates with nodes that stay in float because the quantizer raised -> its error."""
    found = dict[str, str]()
    for entry in report.stages:
        if entry.stage == "quantize":
            for reason in QuantizeFacts.model_validate(entry.facts).left_out.values():
                if QUANTIZER_FAILS in reason:
                    found[str(entry.candidate)] = reason
    return found
