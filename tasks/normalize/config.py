"""The configuration and the facts of the stage."""

from typing import Literal

from pydantic import Field

from gauntlet.core.errors import GateFailed
from gauntlet.core.facts import Facts, Section
from gauntlet.core.frozen import Frozen, Number
from gauntlet.metrics.output_comparison import HALF_ROUNDING, BatchNoise, Tolerances
from gauntlet.onnx_model.normalization.fixed_inputs import InputValue
from gauntlet.onnx_model.recognition import Precision

StepName = Literal[
    "order",
    "fix_inputs",
    "initializer_inputs",
    "functions",
    "constants",
    "branches",
    "opset",
    "padding",
    "batch",
    "unused",
    "names",
    "shapes",
]
"""In order of application."""


class NormalizeConfig(Frozen):
    """The form into which an exported or brought model is put before anything is made of it."""

    opset: int = Field(17, ge=13, description="operator set to reach at least, or 13 where a model cannot")
    fix_inputs: dict[str, InputValue] = Field(
        default_factory=dict, description="inputs that callers keep constant, with the value"
    )
    skip: tuple[StepName, ...] = Field((), description="steps to leave out")


class StepFacts(Frozen):
    """What one step did."""

    step: StepName
    outcome: Literal["applied", "not needed", "undone", "left out"]
    change: str = Field("", description="what it changed, or tried to change")
    reason: str = Field("", description="why it was undone, or is not needed")
    max_abs_error: Number | None = Field(
        None, description="largest difference of an output from the file's as it came, after this step and those before"
    )


class NormalizeFacts(Facts):
    """The model before and after normalization."""

    changed: bool = Field(description="whether any step was applied; otherwise the file is passed on as it is")
    steps: tuple[StepFacts, ...]
    opset_before: int
    opset_after: int
    ir_version_before: int
    ir_version_after: int
    nodes_before: int
    nodes_after: int
    size_bytes: int
    precision: Precision = Field(description="what the model computes in; one that is not float32 is not quantized")
    precision_reason: str = Field("", description="how that was recognized")
    control_flow: dict[str, int] = Field(description="number of If, Loop and Scan nodes that are left")
    batch_noise: BatchNoise | None = Field(
        None, description="how much the outputs of a model that is not float32 differ between batch sizes"
    )
    same_graph: bool = Field(True, description="whether ONNX Runtime certainly makes the same graph of both files")

    def section(self) -> Section | None:
        """Return the steps; in Markdown, those that had something to do."""
        if not self.steps:
            return None
        tried = [step for step in self.steps if step.outcome in ("applied", "undone")]
        rows = tuple((step.step, step.outcome, step.change, step.reason) for step in tried)
        headings, values = ("Step", "Outcome", "Change", "Why not"), {"facts": self}
        return Section("Normalization", headings, rows, template="normalization.html.j2", values=values)

    @property
    def repaired(self) -> bool:
        """Whether the runtime computes something else than the file as it came says."""
        return any(step.step == "padding" and step.outcome == "applied" for step in self.steps)

    def limits(self, configured: Tolerances) -> Tolerances:
        """Return the limits on the outputs of files that are made from this one."""
        least = HALF_ROUNDING if self.precision == "float16" else 0.0  # of another runtime, whatever the outputs' type
        return configured if self.batch_noise is None else self.batch_noise.widen(configured, least)

    def require_float32(self) -> None:
        """Raise `GateFailed` when the recipes, which quantize float32 models, have nothing to do on this one."""
        if self.precision != "float32":
            raise GateFailed(f"the recipes quantize float32 models, and this one is not: {self.precision_reason}")
