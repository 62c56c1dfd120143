"""Apply the steps: proven together to compute what the file as it came does, and one by one where that fails."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Self

import onnx

from gauntlet.core.errors import ConfigError, StageError, one_line
from gauntlet.core.signature import Signature
from gauntlet.datasets.golden import Golden, GoldenCase
from gauntlet.metrics.output_comparison import NoisyTolerances, Tolerances, batch_noise, compare_outputs, own_outputs
from gauntlet.onnx_model.graph import updated_signature
from gauntlet.onnx_model.model_file import checker_error, read_graph
from gauntlet.runtime.source_session import open_source
from tasks.normalize.config import StepFacts, StepName
from tasks.normalize.steps import NotNeeded, Setting, Step

Prove = Callable[[onnx.ModelProto], tuple[str, float | None]]
"""Returns why a model is not proven equal, empty if it is, and the largest difference of an output."""


@dataclass(frozen=True)
class Normalized:
    """A model and the steps that made it."""

    proto: onnx.ModelProto
    steps: tuple[StepFacts, ...]

    @property
    def changed(self) -> bool:
        """Whether any step was applied."""
        return any(step.outcome == "applied" for step in self.steps)


def apply_steps(
    proto: onnx.ModelProto, setting: Setting, steps: Mapping[StepName, tuple[Step, ...]], prove: Prove | None = None
) -> Normalized:
    """Apply every step to a copy of the model; what is not proven to keep the outputs is undone.

    Without `prove`, nothing is: to see whether there is anything to do.

    Raises:
        ConfigError: when an input to fix does not exist, or its value does not fit.
    """
    together = _apply(proto, setting, steps, None)
    if prove is None or not together.changed:
        return together
    failure, error = prove(together.proto)
    if failure:
        return _apply(proto, setting, steps, prove)
    proven = (step.replace(max_abs_error=error) if step.outcome == "applied" else step for step in together.steps)
    return replace(together, steps=tuple(proven))


def _apply(
    proto: onnx.ModelProto, setting: Setting, steps: Mapping[StepName, tuple[Step, ...]], prove: Prove | None
) -> Normalized:
    done = list[StepFacts]()
    for name, variants in steps.items():
        if name in setting.config.skip:
            done.append(StepFacts(step=name, outcome="left out", reason="normalize.skip names it"))
            continue
        tried = list[StepFacts]()
        for variant in variants:
            changed = onnx.ModelProto()
            changed.CopyFrom(proto)
            tried.append(_try(name, variant, changed, setting, prove))
            if tried[-1].outcome == "applied":
                signature = updated_signature(setting.signature, proto.graph, changed.graph)
                signature.write(changed)
                proto, setting = changed, replace(setting, signature=signature, changed=True)
            if tried[-1].outcome != "undone":
                break
        done.append(tried[-1] if tried[-1].outcome == "applied" else tried[0])
    return Normalized(proto, tuple(done))


def _try(name: StepName, step: Step, proto: onnx.ModelProto, setting: Setting, prove: Prove | None) -> StepFacts:
    try:
        change = step(proto, setting)
    except NotNeeded as reason:
        return StepFacts(step=name, outcome="not needed", reason=str(reason))
    except (ConfigError, MemoryError):
        raise
    except Exception as error:  # converters and passes raise arbitrary exceptions
        return StepFacts(step=name, outcome="undone", reason=f"cannot be applied: {one_line(error)}")
    if not change:
        return StepFacts(step=name, outcome="not needed")
    failure, difference = prove(proto) if prove else ("", None)
    outcome: Literal["undone", "applied"] = "undone" if failure else "applied"
    return StepFacts(step=name, outcome=outcome, change=change, reason=failure, max_abs_error=difference)


STRICTER = 4
"""The steps should be exact, but for the order of sums; the gate `numerics` compares more samples and has to agree."""


@dataclass(frozen=True)
class Proof:
    """The outputs of the file as it came, and how closely they must be kept."""

    cases: dict[str, GoldenCase]
    limits: Tolerances
    folder: Path
    """Holds the models' weights; candidates are written beside them."""
    checker_error: str
    """What ONNX's checker says of the file as it came; empty for a valid file."""
    signature: Signature | None
    """The output whose largest value is the predicted class."""

    @classmethod
    def from_model(cls, model: Path, folder: Path, golden: Golden, limits: Tolerances, samples: int) -> Self:
        """Run the file on golden inputs; `StageError` when it does not run on them."""
        session = open_source(model)
        cases = own_outputs(session, golden.cases, samples)
        signature = Signature.find(read_graph(model))
        strict = limits.replace(samples=samples, max_rel_error=limits.max_rel_error / STRICTER)
        if not isinstance(limits, NoisyTolerances):  # a deep float32 network, too, rounds otherwise in other batches
            noise = batch_noise(strict, session, cases, signature)
            own = {name: min(error, limits.max_rel_error) for name, error in noise.max_rel_error.items()}
            strict = noise.replace(max_rel_error=own).widen(strict)
        return cls(cases, strict, folder, checker_error(model), signature)

    def failure(self, proto: onnx.ModelProto) -> tuple[str, float | None]:
        """Return why the model is not proven equal, empty if it is, and the largest difference of an output."""
        path = self.folder / "candidate.onnx"
        onnx.save(proto, path)
        if not self.checker_error and (error := checker_error(path)):
            return f"not valid ONNX: {error}", None
        try:
            comparison = compare_outputs(self.limits, open_source(path), self.cases, self.signature)
        except StageError as error:
            return one_line(error), None
        return " ".join(comparison.fault(self.limits).split()), comparison.max_abs_error
