"""Gate on an INT8 candidate: on which processors it keeps the outputs measured on this machine."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import onnx
from pydantic import Field

from gauntlet.core.artifact import Artifact
from gauntlet.core.frozen import Frozen
from gauntlet.core.report import Check, Report
from gauntlet.core.workspace import Workspace
from gauntlet.datasets import read_split
from gauntlet.datasets.splits import Split
from gauntlet.onnx_model.model_file import read_model, write_model
from gauntlet.runtime.processor import UnsupportedProcessorPolicy, portability_metadata
from tasks.portability.emulation import EmulatedProcessor, EmulationResult, emulated, emulator_status
from tasks.portability.prediction import Prediction, predict
from tasks.portability.simulation import SaturationSimulator

PortabilityVerdict = Literal["safe", "safe with 7-bit weights", "needs VNNI"]


class PortabilityConfig(Frozen):
    """Limits for an INT8 model on x86 processors without VNNI, where sums saturate, and on Arm."""

    prediction_samples: int = Field(16, ge=1, description="samples for the prediction of saturation")
    min_sqnr_db: float = Field(
        30.0, description="safe: least SQNR of the outputs with saturation against the exact ones, in dB"
    )
    min_top1_agreement: float = Field(
        1.0, ge=0, le=1, description="safe: least share of samples with the same predicted class"
    )
    needs_vnni: Literal["accept", "reject"] = Field(
        "accept", description="whether a candidate that needs VNNI is accepted"
    )
    on_unsupported_processor: UnsupportedProcessorPolicy = Field(
        "warn", description="what happens when it is loaded on a processor without VNNI; exact: use slower kernels"
    )
    emulate: tuple[EmulatedProcessor, ...] = Field(
        (), description="processors on which test images are run, emulated by qemu-user"
    )
    emulation_images: int = Field(32, ge=1, description="test images to run under emulation")
    max_accuracy_drop: float = Field(
        0.01, ge=0, le=1, description="largest accuracy drop on an emulated processor, on the same images"
    )
    timeout_s: float = Field(300, gt=0, description="time limit for one emulated processor")

    def emulators(self) -> dict[str, str]:
        """Return the status of each emulator; it can change between runs, so it is an input of the stage."""
        return {target: emulator_status(target) for target in self.emulate}


class PortabilityFacts(Frozen):
    """On which processors the candidate may run."""

    verdict: PortabilityVerdict
    reason: str
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

    Args:
        config: limits.
        workspace: where to read and write.
        model: the candidate.
        samples: a split for the prediction.
        test: a split for the emulation.
        emulators: `config.emulators()`.
    """
    path = workspace.path(model)
    verdict, reason, kernels, prediction = _judge(config, path, read_split(workspace.path(samples)))
    proto, destination = read_model(path), workspace.folder / "model.onnx"
    metadata = portability_metadata(
        verdict, needs_vnni=verdict == "needs VNNI", elsewhere=config.on_unsupported_processor
    )
    onnx.helper.set_model_props(proto, {p.key: p.value for p in proto.metadata_props} | metadata)
    split = read_split(workspace.path(test))
    facts = PortabilityFacts(
        verdict=verdict,
        reason=reason,
        kernels=kernels,
        prediction=prediction,
        emulated=tuple(
            emulated(t, emulators[t], path, split, images=config.emulation_images, timeout_s=config.timeout_s)
            for t in config.emulate
        ),
    )
    labeled = workspace.store_file(destination, *write_model(proto, destination))
    return Report(stage="portability", facts=facts, checks=_checks(config, facts), artifacts={"model": labeled})


def _judge(
    config: PortabilityConfig, path: Path, split: Split
) -> tuple[PortabilityVerdict, str, int, Prediction | None]:
    simulator = SaturationSimulator(path)
    kernels = list(simulator.kernels.values())
    if simulator.unsupported:
        reason = f"{', '.join(simulator.unsupported)} may saturate; the simulator does not support it"
        return "needs VNNI", reason, len(kernels), None
    if not any(kernel.can_saturate for kernel in kernels):
        if kernels and all(kernel.seven_bit for kernel in kernels):
            return (
                "safe with 7-bit weights",
                "the sum of two products with 7-bit weights fits an int16",
                len(kernels),
                None,
            )
        reason = "no pair of its weights can exceed an int16" if kernels else "it has no kernel that could saturate"
        return "safe", reason, len(kernels), None
    prediction = predict(simulator, path, split, config.prediction_samples)
    noise = "" if prediction.sqnr_db is None else f", {prediction.sqnr_db:.1f} dB"
    reason = (
        f"{prediction.saturated_share:.2%} of the pairs saturate, "
        f"{prediction.top1_agreement:.1%} of the predicted classes stay{noise}"
    )
    within_noise = prediction.sqnr_db is None or prediction.sqnr_db >= config.min_sqnr_db
    safe = within_noise and prediction.top1_agreement >= config.min_top1_agreement
    return "safe" if safe else "needs VNNI", reason, len(kernels), prediction


def _checks(config: PortabilityConfig, facts: PortabilityFacts) -> tuple[Check, ...]:
    needs = facts.verdict == "needs VNNI"
    missing = [f"{e.target} {e.runtime}" for e in facts.emulated if e.images == 0]
    return (
        Check(
            name="portability.needs_vnni",
            value=int(needs),
            op="==",
            limit=0,
            severity="error" if config.needs_vnni == "reject" else "warning",
            detail=f"{facts.verdict}: {facts.reason}",
            remedy="use the same recipe with 7-bit weights (reduce_range: true)" if needs else "",
        ),
        *(
            Check(
                name="portability.max_accuracy_drop",
                value=e.drop,
                op="<=",
                limit=config.max_accuracy_drop,
                detail=f"{e.images} test images on {e.target}, {e.runtime}",
                remedy="use 7-bit weights (reduce_range: true)",
            )
            for e in facts.emulated
            if e.images
        ),
        Check(
            name="portability.unavailable",
            value=len(missing),
            op="==",
            limit=0,
            unit="processors",
            severity="warning",
            detail="; ".join(missing),
        ),
    )
