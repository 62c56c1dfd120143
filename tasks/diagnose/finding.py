"""What a diagnosis says: findings, each with its cause in one line and the way out, and what was done about them."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from tasks.frozen import Frozen, Number

Fault = Literal[
    "training_mode",
    "too_new",
    "frozen_batch",
    "unregistered_operator",
    "missing_shapes",
    "wrong_layout",
    "slow_first_call",
    "leaked_constant",
    "external_data",
    "invalid_model",
    "unrunnable",
]
Layout = Literal["NCHW", "NHWC"]

TITLES: dict[Fault, str] = {
    "training_mode": "exported in training mode",
    "too_new": "opset or IR version too new",
    "frozen_batch": "batch size frozen",
    "unregistered_operator": "unregistered operator",
    "missing_shapes": "shapes missing for quantisation",
    "wrong_layout": "NHWC fed with NCHW",
    "slow_first_call": "slow first call",
    "leaked_constant": "constant leaked as an input",
    "external_data": "external data out of reach",
    "invalid_model": "not valid ONNX",
    "unrunnable": "does not run",
}
ALWAYS_LISTED: tuple[Fault, ...] = tuple(TITLES)[:8]
"""The classic faults; the others are listed only when they are found."""


class Evidence(Frozen):
    """What a caller may know beside the model. Everything is optional."""

    data: Path | None = Field(
        None,
        description="an .npz file with samples by input name, shape (n, ...), and perhaps the right outputs by name",
    )
    layout: Layout | None = Field(None, description="how the caller's pictures lie in memory")
    constants: Path | None = Field(None, description="an .npz file with the values of leaked constants, by input name")


class Finding(Frozen):
    """One fault. An error makes the model wrong or unusable; a warning costs speed."""

    fault: Fault
    cause: str = Field(description="one line")
    fix: str = Field(description="what to do about it")
    fixable: bool = Field(description="whether --fix does it")
    severity: Literal["error", "warning"] = "error"


class Timing(Frozen):
    """The first answer of a fresh process against the later ones, in milliseconds, for one sample."""

    session_ms: Number = Field(description="building the session")
    first_call_ms: Number
    steady_ms: Number = Field(description="median of the later calls")

    @property
    def first_answer_ms(self) -> float:
        """How long the first caller waits."""
        return self.session_ms + self.first_call_ms


class Step(Frozen):
    """One fix that was tried. A step that is not kept left no trace in the file."""

    fault: Fault
    done: str = Field(description="what was changed, or why it could not be")
    kept: bool
    max_abs_error: Number | None = Field(None, description="largest difference of any output; see `compared`")
    compared: str = Field("", description="with what the outputs were compared, or why they were not")


class Mending(Frozen):
    """What `--fix` did. Nothing is written when no step was kept."""

    output: str | None
    steps: tuple[Step, ...]


class Diagnosis(Frozen):
    """The whole answer."""

    model: str
    size_bytes: int
    opsets: dict[str, int]
    ir_version: int
    nodes: int
    findings: tuple[Finding, ...]
    unchecked: dict[Fault, str] = Field(description="faults that were not looked for, and why")
    timing: Timing | None = None
    batches: tuple[int, ...] = Field((), description="batch sizes that ran")
    peak_rss_bytes: int = Field(description="largest resident memory of the processes that read and ran the model")

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings that make the model wrong or unusable."""
        return tuple(finding for finding in self.findings if finding.severity == "error")
