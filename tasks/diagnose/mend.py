"""The safe fixes, in a child process: each is tried on a copy, compared with what was before, and kept or undone."""

import os
from collections.abc import Callable
from pathlib import Path

import onnx

from tasks.diagnose import constants, dynamic_batch, first_call, layout, shapes, training, versions
from tasks.diagnose.clues import Clues, arrays, signature_of
from tasks.diagnose.compare import LIMIT, Model, compare, smallest_batch
from tasks.diagnose.finding import Evidence, Fault, Mending, Step
from tasks.model_file import is_large, write_model
from tasks.runtime.graph import Axes, axes, one_line
from tasks.signature import TensorSpec

FIXES: dict[Fault, Callable[[Clues], str]] = {
    "training_mode": lambda clues: training.fix(clues.proto),
    "too_new": lambda clues: versions.fix(clues.proto),
    "leaked_constant": constants.fix,
    "frozen_batch": lambda clues: dynamic_batch.fix(clues, smallest_batch(Model(clues.proto), clues)[0]),
    "wrong_layout": layout.fix,
    "missing_shapes": lambda clues: shapes.fix(clues.proto),
    "slow_first_call": lambda clues: first_call.fix(clues.proto),
}
"""In this order: what answers by chance cannot be compared, and hardly what the runtime does not load."""


def mend(path: Path, target: Path, evidence: Evidence, faults: tuple[Fault, ...]) -> Mending:
    """Apply the fixes of some faults and write the model to `target`, weights included, unless no fix was kept."""
    proto = onnx.load(path)
    data, known = arrays(evidence.data), arrays(evidence.constants)

    def clues(model: onnx.ModelProto) -> Clues:
        return Clues(path, model, signature_of(model), data, known, evidence.layout)

    steps: list[Step] = []
    for fault, fix in FIXES.items():
        if fault not in faults:
            continue
        changed = onnx.ModelProto()
        changed.CopyFrom(proto)
        step = _try(fault, fix, clues(proto), clues(changed))
        steps.append(step)
        if step.kept:
            proto = changed
    if not any(step.kept for step in steps):
        return Mending(output=None, steps=tuple(steps))
    _write(proto, target)
    return Mending(output=str(target), steps=tuple(steps))


def _try(fault: Fault, fix: Callable[[Clues], str], before: Clues, after: Clues) -> Step:
    try:
        done = fix(after)
        _update_signature(fault, before, after)
        error, compared = compare(fault, before, after)
    except MemoryError:
        raise
    except Exception as failure:  # converters and passes raise what they like; the step is undone
        return Step(fault=fault, done=f"could not be done: {one_line(failure)}", kept=False)
    if error is not None and not error <= LIMIT:
        done = f"undone: the outputs change by {error:.3g}, and the limit is {LIMIT:g}"
        return Step(fault=fault, done=done, kept=False, max_abs_error=error, compared=compared)
    return Step(fault=fault, done=done, kept=True, max_abs_error=error, compared=compared)


def _update_signature(fault: Fault, before: Clues, after: Clues) -> None:
    """Change the signature where the fix changed the graph; all else is the contract with the callers, and stays."""
    signature = signature_of(after.proto)
    if signature is None:
        return
    was, now = (
        {value.name: axes(value) for value in (*clues.graph.input, *clues.graph.output)} for clues in (before, after)
    )

    def specs(old: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
        changed = {name: shape for name, shape in now.items() if shape != was.get(name)}
        return tuple(spec.replace(shape=_named(changed.get(spec.name), spec)) for spec in old)

    signature = signature.replace(inputs=specs(signature.inputs), outputs=specs(signature.outputs))
    if fault == "wrong_layout":
        signature = signature.replace(layout=layout.pictures(after.graph)[0].takes)
    signature.write(after.proto)


def _named(shape: Axes | None, spec: TensorSpec) -> tuple[int | str, ...]:
    if shape is None or len(shape) != len(spec.shape):
        return spec.shape
    return tuple(old if new is None else new for new, old in zip(shape, spec.shape, strict=True))


def _write(proto: onnx.ModelProto, target: Path) -> None:
    """Write beside the target and rename, so that a kill leaves the old file whole."""
    if is_large(proto):  # its weights go into a second file, whose name stands in the first
        write_model(proto, target)
        return
    unfinished = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        write_model(proto, unfinished)
        unfinished.replace(target)
    finally:
        unfinished.unlink(missing_ok=True)
