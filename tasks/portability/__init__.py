"""Gate on an INT8 candidate: on which processors it gives the answers that were measured here."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import onnx
from pydantic import Field

from tasks.artifact import Artifact
from tasks.data.dataset import Split
from tasks.data.read import read_split
from tasks.frozen import Frozen
from tasks.model_file import read_model, write_model
from tasks.portability.emulate import Emulated, Target, emulated, state
from tasks.portability.predict import Prediction, predict
from tasks.portability.simulate import Network
from tasks.report import Check, Report
from tasks.runtime.processor import Elsewhere, stamp
from tasks.workspace import Workspace

Verdict = Literal["safe", "safe with 7-bit weights", "needs VNNI"]


class PortabilityConfig(Frozen):
    """What an INT8 model must keep on x86 processors without VNNI, where sums saturate, and on Arm."""

    samples: int = Field(16, ge=1, description="samples on which saturation is predicted")
    min_sqnr_db: float = Field(
        30.0, description="safe: the saturating answers' signal to noise, against exact ones, in decibels"
    )
    min_top1_agreement: float = Field(1.0, ge=0, le=1, description="safe: share of samples with the same answer")
    needs_vnni: Literal["accept", "reject"] = Field("accept", description="what becomes of a candidate that needs VNNI")
    elsewhere: Elsewhere = Field(
        "warn", description="what loading it on a processor without VNNI does; exact: take slower kernels"
    )
    emulate: tuple[Target, ...] = Field((), description="processors under which test images are run, by qemu-user")
    images: int = Field(32, ge=1, description="test images to run under emulation")
    max_accuracy_drop: float = Field(0.01, ge=0, le=1, description="accuracy lost there, on the same images")
    timeout_s: float = Field(300, gt=0, description="for one emulated processor")

    def emulators(self) -> dict[str, str]:
        """Return what each of them would run, or why it cannot: an input of the stage, as it may change."""
        return {target: state(target) for target in self.emulate}


class PortabilityFacts(Frozen):
    """Where the candidate may run."""

    verdict: Verdict
    reason: str
    kernels: int = Field(description="kernels that multiply unsigned activations by signed weights")
    prediction: Prediction | None = Field(description="None where no input could saturate")
    emulated: tuple[Emulated, ...]


def check_portability(
    config: PortabilityConfig,
    out: Workspace,
    *,
    model: Artifact,
    samples: Artifact,
    test: Artifact,
    emulators: Mapping[str, str],
) -> Report[PortabilityFacts]:
    """Say on which processors the model is right, and write that into a copy of it; the report's artifact is `model`.

    Args:
        config: what to require.
        out: where to write.
        model: the candidate.
        samples: a split, for the prediction.
        test: a split, for the emulation.
        emulators: `config.emulators()`.
    """
    path = out.path(model)
    verdict, reason, kernels, prediction = _judge(config, path, read_split(out.path(samples)))
    proto, stamped = read_model(path), out.folder / "model.onnx"
    told = stamp(verdict, needs_vnni=verdict == "needs VNNI", elsewhere=config.elsewhere)
    onnx.helper.set_model_props(proto, {p.key: p.value for p in proto.metadata_props} | told)
    split = read_split(out.path(test))
    facts = PortabilityFacts(
        verdict=verdict,
        reason=reason,
        kernels=kernels,
        prediction=prediction,
        emulated=tuple(
            emulated(t, emulators[t], path, split, images=config.images, timeout_s=config.timeout_s)
            for t in config.emulate
        ),
    )
    kept = out.keep(stamped, *write_model(proto, stamped))
    return Report(stage="portability", facts=facts, checks=_checks(config, facts), artifacts={"model": kept})


def _judge(config: PortabilityConfig, path: Path, split: Split) -> tuple[Verdict, str, int, Prediction | None]:
    network = Network(path)
    kernels = list(network.kernels.values())
    if network.unknown:
        why = f"{', '.join(network.unknown)} may saturate, and cannot be predicted here"
        return "needs VNNI", why, len(kernels), None
    if not any(kernel.can_saturate for kernel in kernels):
        if kernels and all(kernel.seven_bit for kernel in kernels):
            return "safe with 7-bit weights", "two products of 7-bit weights fit an int16", len(kernels), None
        why = "no two of its weights can leave an int16" if kernels else "it has no kernel that could saturate"
        return "safe", why, len(kernels), None
    found = predict(network, path, split, config.samples)
    noise = "" if found.sqnr_db is None else f", {found.sqnr_db:.1f} dB"
    why = f"{found.saturated_share:.2%} of the pairs saturate, {found.top1_agreement:.1%} of the answers stay{noise}"
    quiet = found.sqnr_db is None or found.sqnr_db >= config.min_sqnr_db
    safe = quiet and found.top1_agreement >= config.min_top1_agreement
    return "safe" if safe else "needs VNNI", why, len(kernels), found


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
            remedy="the same recipe with 7-bit weights (reduce_range: true)" if needs else "",
        ),
        *(
            Check(
                name="portability.max_accuracy_drop",
                value=e.drop,
                op="<=",
                limit=config.max_accuracy_drop,
                detail=f"{e.images} test images as {e.target}, {e.runtime}",
                remedy="7-bit weights (reduce_range: true)",
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
