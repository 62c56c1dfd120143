"""The results of a diagnosis: findings, each with a one-line cause and a fix, and the fixes that were applied."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from gauntlet.core.frozen import Frozen, Number

Fault = Literal[
    "training_mode",
    "too_new",
    "frozen_batch",
    "unregistered_operator",
    "missing_shapes",
    "wrong_layout",
    "slow_first_call",
    "leaked_constant",
    "old_opset",
    "constant_weights",
    "default_inputs",
    "constant_branch",
    "forgotten_padding",
    "local_functions",
    "wrong_shapes",
    "unused_nodes",
    "shared_scale",
    "repeated_names",
    "unsorted_nodes",
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
    "missing_shapes": "shapes missing for quantization",
    "wrong_layout": "NHWC fed with NCHW",
    "slow_first_call": "slow first call",
    "leaked_constant": "constant leaked as an input",
    "old_opset": "opset too old for INT8 per channel",
    "constant_weights": "weights in Constant nodes",
    "default_inputs": "weights are inputs",
    "constant_branch": "branch that never changes",
    "forgotten_padding": "padding that is forgotten",
    "local_functions": "functions of the model",
    "wrong_shapes": "stored shapes are wrong",
    "unused_nodes": "unused nodes",
    "shared_scale": "scores and boxes share a scale",
    "repeated_names": "nodes of the same name",
    "unsorted_nodes": "nodes out of order",
    "external_data": "external data out of reach",
    "invalid_model": "not valid ONNX",
    "unrunnable": "does not run",
}
ALWAYS_LISTED: tuple[Fault, ...] = tuple(TITLES)[:8]
"""The classic faults; the others are listed only when found."""


class CallerHints(Frozen):
    """What a caller may know about the model. Every field is optional."""

    data: Path | None = Field(
        None, description="an .npz file: samples by input name, shape (n, ...), and optionally expected outputs by name"
    )
    layout: Layout | None = Field(None, description="axis order of the caller's images")
    constants: Path | None = Field(None, description="an .npz file with the values of leaked constants, by input name")


class Finding(Frozen):
    """One fault. An error: the model is wrong or unusable. A warning: it is slower than necessary."""

    fault: Fault
    cause: str = Field(description="one line")
    fix: str = Field(description="what to do about it")
    fixable: bool = Field(description="whether --fix can repair it")
    severity: Literal["error", "warning"] = "error"


class Timing(Frozen):
    """The first call of a fresh process against the later ones, in milliseconds, for one sample."""

    session_ms: Number = Field(description="creating the session")
    first_call_ms: Number
    steady_ms: Number = Field(description="median of the later calls")

    @property
    def first_answer_ms(self) -> float:
        """Time until the first outputs: creating the session and the first call."""
        return self.session_ms + self.first_call_ms


class FixAttempt(Frozen):
    """One fix that was tried. A fix that is not kept does not change the file."""

    fault: Fault
    done: str = Field(description="what was changed, or why the fix failed")
    kept: bool
    max_abs_error: Number | None = Field(None, description="largest difference of any output; see `compared`")
    compared: str = Field("", description="what the outputs were compared with, or why they were not compared")


class FixResult(Frozen):
    """What `--fix` did. Nothing is written when no fix was kept."""

    output: str | None
    steps: tuple[FixAttempt, ...]


class Diagnosis(Frozen):
    """The result of `gauntlet diagnose`."""

    model: str
    size_bytes: int
    opsets: dict[str, int]
    ir_version: int
    nodes: int
    findings: tuple[Finding, ...]
    unchecked: dict[Fault, str] = Field(description="faults that were not checked, and why")
    timing: Timing | None = None
    batches: tuple[int, ...] = Field((), description="batch sizes that ran")
    peak_rss_bytes: int = Field(0, description="largest resident memory of the processes that read and ran the model")

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings of severity `error`."""
        return tuple(finding for finding in self.findings if finding.severity == "error")
