"""The steps of normalization, in order, as functions that change a model in place."""

from collections.abc import Callable
from dataclasses import dataclass

import onnx

from gauntlet.core.signature import Signature
from gauntlet.onnx_model.graph import required_inputs
from gauntlet.onnx_model.normalization.batch import fixed_batch, free_batch
from gauntlet.onnx_model.normalization.branches import fold_branches, if_nodes
from gauntlet.onnx_model.normalization.constants import drop_default_inputs, lift_constants
from gauntlet.onnx_model.normalization.fixed_inputs import fix_inputs
from gauntlet.onnx_model.normalization.opset import PER_CHANNEL_OPSET, raise_opset
from gauntlet.onnx_model.normalization.order import sort_nodes
from gauntlet.onnx_model.normalization.shapes import infer_shapes_anew, keep_zero_padding
from gauntlet.onnx_model.normalization.tidy import inline_functions, make_names_unique, remove_unused
from tasks.normalize.config import NormalizeConfig, StepName


class NotNeeded(Exception):  # noqa: N818 - not an error
    """The step has nothing to do, for the reason in the message."""


@dataclass(frozen=True)
class Setting:
    """What the steps may depend on besides the model."""

    config: NormalizeConfig
    signature: Signature
    max_opset: int
    max_ir_version: int
    one_sample_per_call: bool
    changed: bool = False
    """Whether an earlier step changed the model."""


Step = Callable[[onnx.ModelProto, Setting], str]
"""Changes a model in place and returns what it changed; empty or `NotNeeded` where there is nothing to do."""


def _opset_step(target: Callable[[Setting], int]) -> Step:
    def step(proto: onnx.ModelProto, setting: Setting) -> str:
        return raise_opset(proto, min(target(setting), setting.max_opset), setting.max_ir_version)

    return step


def _batch_step(proto: onnx.ModelProto, setting: Setting) -> str:
    """Make the batch dynamic, unless the signature promises that already: then the export is at fault."""
    if setting.one_sample_per_call:
        raise NotNeeded("each sample is a whole input, so there is no batch")
    if any(spec.shape and isinstance(spec.shape[0], str) for spec in setting.signature.inputs):
        raise NotNeeded("the signature names the batch axis")
    size, reason = fixed_batch(proto.graph)
    if size is None:
        raise NotNeeded(reason)
    return free_batch(proto, required_inputs(proto.graph), size)


def _branches_step(proto: onnx.ModelProto, _: Setting) -> str:
    change = fold_branches(proto)
    if not change and if_nodes(proto):
        raise NotNeeded("the conditions depend on inputs")
    return change


STEPS: dict[StepName, tuple[Step, ...]] = {
    "order": (lambda proto, _: sort_nodes(proto),),
    "fix_inputs": (lambda proto, setting: fix_inputs(proto, setting.config.fix_inputs),),
    "initializer_inputs": (  # before steps that need IR version 4, in which a weight that is an input is no constant
        lambda proto, setting: drop_default_inputs(proto, {spec.name for spec in setting.signature.inputs}),
    ),
    "functions": (lambda proto, _: inline_functions(proto),),
    "constants": (lambda proto, _: lift_constants(proto),),
    "branches": (_branches_step,),
    "opset": (_opset_step(lambda setting: setting.config.opset), _opset_step(lambda _: PER_CHANNEL_OPSET)),
    "padding": (lambda proto, _: keep_zero_padding(proto),),  # behind `opset`: before 11, the value is an attribute
    "batch": (_batch_step,),
    "unused": (lambda proto, _: remove_unused(proto),),
    "names": (lambda proto, _: make_names_unique(proto),),
    "shapes": (lambda proto, setting: infer_shapes_anew(proto, always=setting.changed),),
}
"""Each step with its variants: where the first cannot be proven, the next is tried."""
