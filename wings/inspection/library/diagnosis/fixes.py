"""Apply the safe fixes in a child process: each on a copy whose outputs are compared, then kept or undone."""

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import onnx

from gauntlet.core.errors import one_line
from gauntlet.onnx_model.graph import updated_signature
from gauntlet.onnx_model.model_file import exceeds_protobuf_limit, write_model
from gauntlet.onnx_model.normalization.branches import fold_branches
from gauntlet.onnx_model.normalization.constants import drop_default_inputs, lift_constants
from gauntlet.onnx_model.normalization.opset import raise_opset
from gauntlet.onnx_model.normalization.order import sort_nodes
from gauntlet.onnx_model.normalization.shapes import infer_shapes_anew, keep_zero_padding
from gauntlet.onnx_model.normalization.tidy import inline_functions, make_names_unique, remove_unused
from gauntlet.runtime.session import supported_ir_version
from wings.inspection.library.diagnosis.context import ModelContext, read_context
from wings.inspection.library.diagnosis.faults import (
    frozen_batch,
    leaked_constant,
    missing_shapes,
    slow_first_call,
    training_mode,
    unsupported_version,
    wrong_layout,
)
from wings.inspection.library.diagnosis.faults.unnormalized import NEW_OPSET
from wings.inspection.library.diagnosis.findings import CallerHints, Fault, FixAttempt, FixResult
from wings.inspection.library.diagnosis.fix_verification import LIMIT, ComparisonModel, smallest_batch, verify_fix

FIXES: dict[Fault, Callable[[ModelContext], str]] = {
    "unsorted_nodes": lambda context: sort_nodes(context.proto),
    "repeated_names": lambda context: make_names_unique(context.proto),
    "training_mode": lambda context: training_mode.fix(context.proto),
    "too_new": lambda context: unsupported_version.fix(context.proto),
    "leaked_constant": leaked_constant.fix,
    "local_functions": lambda context: inline_functions(context.proto),
    "constant_weights": lambda context: lift_constants(context.proto),
    "default_inputs": lambda context: drop_default_inputs(context.proto, context.declared_inputs),
    "constant_branch": lambda context: fold_branches(context.proto),
    "forgotten_padding": lambda context: keep_zero_padding(context.proto),
    "old_opset": lambda context: f"converted {raise_opset(context.proto, NEW_OPSET, supported_ir_version())}",
    "frozen_batch": lambda context: frozen_batch.fix(context, smallest_batch(ComparisonModel(context), context)[0]),
    "wrong_layout": wrong_layout.fix,
    "unused_nodes": lambda context: remove_unused(context.proto),
    "wrong_shapes": lambda context: infer_shapes_anew(context.proto),
    "missing_shapes": lambda context: missing_shapes.fix(context.proto),
    "slow_first_call": lambda context: slow_first_call.fix(context.proto),
}
"""In order of application: random outputs, and models that do not load, must be fixed before others are compared."""


def apply_fixes(path: Path, target: Path, hints: CallerHints, faults: tuple[Fault, ...]) -> FixResult:
    """Apply the fixes of the given faults; write the model with its weights to `target` if any fix was kept."""
    context = replace(read_context(path, hints), proto=onnx.load(path))
    steps: list[FixAttempt] = []
    for fault, fix in FIXES.items():
        if fault in faults:
            changed = replace(context, proto=onnx.ModelProto())
            changed.proto.CopyFrom(context.proto)
            steps.append(_try(fault, fix, context, changed))
            context = changed if steps[-1].kept else context
    kept = any(step.kept for step in steps)
    if kept:
        _write(context.proto, target)
    return FixResult(output=str(target) if kept else None, steps=tuple(steps))


def _try(fault: Fault, fix: Callable[[ModelContext], str], before: ModelContext, after: ModelContext) -> FixAttempt:
    try:
        done = fix(after)
        _update_signature(fault, before, after)
        error, compared = verify_fix(fault, before, after)
    except MemoryError:
        raise
    except Exception as failure:  # converters and passes raise arbitrary exceptions; the fix is undone
        return FixAttempt(fault=fault, done=f"not applied: {one_line(failure)}", kept=False)
    kept = error is None or error <= LIMIT
    done = done if kept else f"undone: the outputs change by {error:.3g}, above the limit of {LIMIT:g}"
    return FixAttempt(fault=fault, done=done, kept=kept, max_abs_error=error, compared=compared)


def _update_signature(fault: Fault, before: ModelContext, after: ModelContext) -> None:
    """Change the signature only where the fix changed the graph; the rest is the contract with the callers."""
    if after.signature is None:
        return
    signature = updated_signature(after.signature, before.graph, after.graph)
    if fault == "wrong_layout":
        signature = signature.replace(layout=wrong_layout.image_inputs(after.graph)[0].layout)
    signature.write(after.proto)


def _write(proto: onnx.ModelProto, target: Path) -> None:
    """Write a temporary file and rename it, so that an interruption leaves the old file intact."""
    if exceeds_protobuf_limit(proto):  # the weights go into a second file, which the first one names
        write_model(proto, target)
        return
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        unfinished = Path(folder) / target.name
        write_model(proto, unfinished)
        unfinished.replace(target)
