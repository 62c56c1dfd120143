"""Apply the steps: proven together, and one by one where that fails."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import onnx

from gauntlet.core.errors import ConfigError, one_line
from gauntlet.onnx_model.graph import updated_signature
from tasks.normalize.config import StepFacts, StepName
from tasks.normalize.steps import NotNeeded, Setting, Step

Prove = Callable[[onnx.ModelProto], tuple[str, float | None]]
"""Returns why a model is not proven equal, empty if it is, and the largest difference of an output."""


@dataclass(frozen=True)
class Normalized:
    """A model and the steps that made it."""

    proto: onnx.ModelProto
    steps: tuple[StepFacts, ...]
    setting: Setting

    @property
    def changed(self) -> bool:
        """Whether any step was applied."""
        return any(step.outcome == "applied" for step in self.steps)


def apply_unproven(proto: onnx.ModelProto, setting: Setting, steps: Mapping[StepName, tuple[Step, ...]]) -> Normalized:
    """Apply every step to a copy of the model, and prove nothing: to see whether there is anything to do."""
    return _apply(proto, setting, steps, None)


def apply_steps(
    proto: onnx.ModelProto, setting: Setting, steps: Mapping[StepName, tuple[Step, ...]], prove: Prove
) -> Normalized:
    """Apply every step to a copy of the model; what is not proven to keep the outputs is undone.

    Raises:
        ConfigError: when an input to fix does not exist, or its value does not fit.
    """
    together = _apply(proto, setting, steps, None)
    if not together.changed:
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
    return Normalized(proto, tuple(done), setting)


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
