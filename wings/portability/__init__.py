"""Gate on an INT8 candidate: on which processors and runtimes it gives what was measured on this machine."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import onnx
from pydantic import Field

from gauntlet.core.artifact import Artifact
from gauntlet.core.facts import Facts
from gauntlet.core.frozen import Frozen
from gauntlet.core.report import Check, Report
from gauntlet.core.shipping import ShippingStage
from gauntlet.core.workspace import Workspace
from gauntlet.datasets import read_split
from gauntlet.datasets.splits import Split
from gauntlet.onnx_model.graph import all_nodes, operator_name
from gauntlet.onnx_model.model_file import read_model, write_model
from gauntlet.runtime.processor import UnsupportedProcessorPolicy, portability_metadata
from wings.portability.emulation import EmulatedProcessor, EmulationResult, emulated, emulator_status
from wings.portability.prediction import Prediction, predict
from wings.portability.simulation import SaturationSimulator

STANDARD = ("", "ai.onnx", "ai.onnx.ml")
PortabilityVerdict = Literal["safe", "needs VNNI"]

QUANTIZED_PARTS = ("QLinear", "Integer", "Quantize", "QGemm", "NBits")
"""In the names of the operators of quantized models that only ONNX Runtime knows; recipes with Q/DQ nodes have none."""

PREDICTION_SAMPLES, EMULATION_IMAGES = 16, 32


class PortabilityConfig(Frozen):
    """Limits for an INT8 model on x86 processors without VNNI, where sums saturate, and on Arm."""

    min_sqnr_db: float = Field(30.0, description="safe: least SQNR of the outputs against the exact ones, in dB")
    min_agreement: float = Field(0.995, ge=0, le=1, description="safe: least agreement of the predictions")
    needs_vnni: Literal["accept", "reject"] = Field("accept", description="what to do with a candidate that needs VNNI")
    on_unsupported_processor: UnsupportedProcessorPolicy = Field(
        "warn", description="what happens when it is loaded without VNNI; exact: slower kernels"
    )
    emulate: tuple[EmulatedProcessor, ...] = Field((), description="processors to emulate by qemu-user on test images")
    max_accuracy_drop: float = Field(0.01, ge=0, le=1, description="largest accuracy drop on an emulated processor")
    timeout_s: float = Field(300, gt=0, description="time limit for one emulated processor")

    def emulators(self) -> dict[str, str]:
        """Return the status of each emulator; it can change between runs, so it is an input of the stage."""
        return {target: emulator_status(target) for target in self.emulate}


class PortabilityFacts(Facts):
    """On which processors the candidate may run."""

    verdict: PortabilityVerdict
    reason: str
    other_operators: dict[str, int] = Field({}, description="operators outside the ONNX standard -> nodes")
    kernels: int = Field(description="kernels that multiply unsigned activations by signed weights")
    prediction: Prediction | None = Field(description="None where saturation is impossible, or cannot be predicted")
    emulated: tuple[EmulationResult, ...]


def portability(
    config: PortabilityConfig,
    workspace: Workspace,
    *,
    model: Artifact,
    samples: Artifact,
    test: Artifact,
    emulators: Mapping[str, str],
) -> Report[PortabilityFacts]:
    """Decide where the model stays accurate, and write that into a copy of it; the report's artifact is `model`.

    `samples` is the split for the prediction, `test` the one for the emulation; `emulators` is `config.emulators()`.
    """
    path, destination = workspace.path(model), workspace.folder / "model.onnx"
    simulator = SaturationSimulator(path)
    verdict, reason, prediction = _judge(config, simulator, path, read_split(workspace.path(samples)))
    proto, needs_vnni = read_model(path), verdict == "needs VNNI"
    metadata = portability_metadata(verdict, needs_vnni=needs_vnni, elsewhere=config.on_unsupported_processor)
    onnx.helper.set_model_props(proto, {p.key: p.value for p in proto.metadata_props} | metadata)
    split, images = read_split(workspace.path(test)), EMULATION_IMAGES
    facts = PortabilityFacts(
        verdict=verdict,
        reason=reason,
        other_operators=_other_operators(proto.graph),
        kernels=len(simulator.kernels),
        prediction=prediction,
        emulated=tuple(
            emulated(target, emulators[target], path, split, images=images, timeout_s=config.timeout_s)
            for target in config.emulate
        ),
    )
    labeled = workspace.store_file(destination, *write_model(proto, destination))
    return Report(facts=facts, checks=_checks(config, facts), artifacts={"model": labeled})


def _judge(
    config: PortabilityConfig, simulator: SaturationSimulator, path: Path, split: Split
) -> tuple[PortabilityVerdict, str, Prediction | None]:
    """Return the verdict, its reason, and the prediction if one was necessary."""
    kernels = simulator.kernels.values()
    if simulator.unsupported:
        unsupported = ", ".join(simulator.unsupported)
        return "needs VNNI", f"{unsupported} may saturate; the simulator does not support it", None
    if not kernels:
        return "safe", "it has no kernel that could saturate", None
    if not any(kernel.can_saturate for kernel in kernels):
        return "safe", "no pair of its weights can exceed an int16", None
    prediction = predict(simulator, path, split, PREDICTION_SAMPLES)
    saturated, agreement = prediction.saturated_share, prediction.agreement
    reason = f"{saturated:.2%} of the pairs saturate, {agreement:.1%} of the predictions stay"
    safe = agreement >= config.min_agreement
    if prediction.sqnr_db is not None:
        reason += f", {prediction.sqnr_db:.1f} dB"
        safe = safe and prediction.sqnr_db >= config.min_sqnr_db
    return "safe" if safe else "needs VNNI", reason, prediction


def _other_operators(graph: onnx.GraphProto) -> dict[str, int]:
    names = (operator_name(node) for node in all_nodes(graph) if node.domain not in STANDARD)
    return dict(sorted(Counter(names).items()))


def _standard_check(facts: PortabilityFacts) -> Check:
    """Return the warning about operators that few runtimes besides ONNX Runtime know."""
    count = sum(facts.other_operators.values())
    check = Check(name="portability.other_operators", value=count, op="==", limit=0, unit="nodes", severity="warning")
    names = ", ".join(f"{name} x{number}" for name, number in facts.other_operators.items())
    detail = f"{names}: outside the ONNX standard; runtimes other than ONNX Runtime may refuse them"
    quantized = all(any(part in name for part in QUANTIZED_PARTS) for name in facts.other_operators)
    remedy = "for another runtime, use a recipe of kind static with format qdq" if quantized else ""
    return check.explained(detail, remedy)


def _checks(config: PortabilityConfig, facts: PortabilityFacts) -> tuple[Check, ...]:
    needs, remedy = int(facts.verdict == "needs VNNI"), "use the same recipe with reduce_range: true"
    severity: Literal["error", "warning"] = "error" if config.needs_vnni == "reject" else "warning"
    detail = f"{facts.verdict}: {facts.reason}"
    vnni = Check.of("portability.needs_vnni", needs, "==", 0, detail, remedy, severity=severity)
    drops = [
        Check(
            name="portability.max_accuracy_drop",
            value=e.drop,
            op="<=",
            limit=config.max_accuracy_drop,
            detail=f"{e.images} test samples on {e.target}, {e.runtime}",
            remedy=remedy if facts.prediction else "",
        )
        for e in facts.emulated
        if e.images
    ]
    missing = [f"{e.target} {e.runtime}" for e in facts.emulated if e.images == 0]
    unavailable = Check(
        name="portability.unavailable", value=len(missing), op="==", limit=0, unit="processors", severity="warning"
    )
    return vnni, *drops, _standard_check(facts), unavailable.replace(detail="; ".join(missing))


PORTABILITY = ShippingStage(
    portability,
    "quantized",
    PortabilityConfig,
    Field(default_factory=PortabilityConfig),
    packages={},
    inputs=lambda config: {"emulators": config.emulators()},
    without_vnni=lambda config: config.needs_vnni == "reject",
    before="benchmark",
)
"""The object of the entry point `shipping.portability`; it runs by default."""
