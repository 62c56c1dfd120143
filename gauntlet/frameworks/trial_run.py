"""Run a brought model on random samples, to learn how it takes batches and what it returns."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from gauntlet.core.arrays import Array, NamedArrays, dtype_name
from gauntlet.core.errors import ConfigError, StageError, one_line
from gauntlet.core.frozen import Frozen
from gauntlet.core.ragged import is_ragged
from gauntlet.core.signature import (
    ChannelOrder,
    Preprocessing,
    Resize,
    Signature,
    Task,
    TensorSpec,
    signature_from_graph,
)
from gauntlet.core.states import States, sample_types, states_by_name, states_by_shape
from gauntlet.datasets.synthetic import draw_samples, has_batch
from gauntlet.onnx_model.graph import declare_outputs, opset_versions, read_untrusted_graph, required_inputs
from gauntlet.onnx_model.model_file import is_large_file, require_local_data
from gauntlet.runtime.batched_inference import batched_inference
from gauntlet.runtime.session import open_session
from gauntlet.runtime.subprocess_runner import SubprocessFailed, run_in_subprocess

Shapes = Mapping[str, tuple[int, ...]]
"""Shape of one sample by input, where the model leaves it open; with as many axes as the input, a whole input."""

TIMEOUT_S = 120.0
MEMORY_BYTES = 8 << 30
TRIED = 4
"""Samples that are run, once one by one and once together."""
CLOSE = 1e-3
"""Outputs for a sample alone and in a batch differ by less, relative to the largest value, where the batch is one."""


@dataclass(frozen=True)
class ExpectedImages:
    """How images become inputs, `(pixel / 255 - mean) / std`, by channel, as far as a framework knows it, and why."""

    why: str
    mean: tuple[float, ...]
    std: tuple[float, ...]
    channel_order: ChannelOrder = "RGB"
    resize: Resize = "stretch"


class TrialRun(Frozen):
    """What the model declares, and what a run on random samples, or on the user's, has shown."""

    opset: int | None = Field(None, description="of an ONNX file")
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...] = Field(description="with the shapes of one call; the first axis is the batch")
    dynamic_axes: dict[str, int] = Field(description="lengths of the open axes, as far as they are given")
    no_batch_axis: bool = Field(description="each sample is a full set of inputs")
    states: States = Field((), description="inputs, and the outputs that they become; none if each stands for itself")
    reason: str = Field("", description="why samples are not batched")
    class_count: int | None = Field(None, description="of a model that names its classes")
    task: Task | None = Field(None, description="of a model that says what its outputs mean")
    layout: str = Field("none", description="of the model's own signature")
    preprocessing: Preprocessing | None = Field(None, description="of the model's own signature")
    images: ExpectedImages | None = Field(None, description="what the framework knows of the model's images")
    own: Signature | None = Field(None, description="the signature that this pipeline has stored in the model")

    @property
    def scores(self) -> TensorSpec | None:
        """The first output with a score for each of several classes; a state is none."""
        returned = {output for _, output in self.states}
        floats = (spec for spec in self.outputs if spec.dtype.startswith("float") and spec.name not in returned)
        rows = (spec for spec in floats if len(spec.shape) == 2 and not self.no_batch_axis)
        return next((spec for spec in rows if isinstance(spec.shape[1], int) and spec.shape[1] > 1), None)

    @property
    def one_number(self) -> bool:
        """Whether the only output is one number for each sample, as a probability of the second of two classes is."""
        shapes = [spec.shape[1:] for spec in self.outputs if spec.dtype.startswith("float")]
        return len(self.outputs) == 1 and shapes in ([()], [(1,)]) and not self.no_batch_axis


def try_model(model: Path, shapes: Shapes, texts: NamedArrays | None = None) -> TrialRun:
    """Run a model in a process of its own, on random samples, or on the user's, shape (n, ...), where some are texts.

    Raises:
        ConfigError: when the file is no ONNX model, leaves shapes open, or fails on random samples.
    """
    try:
        return run_in_subprocess(_try, model, dict(shapes), texts, timeout_s=TIMEOUT_S, memory_bytes=MEMORY_BYTES).value
    except SubprocessFailed as error:
        raise ConfigError(f"{model}: the trial run failed: {error}. Fix: see gauntlet diagnose {model}") from error
    except StageError as error:
        fix = "" if "Fix:" in str(error) else f". Fix: see gauntlet diagnose {model}"
        raise ConfigError(f"{error}{fix}") from error


def model_outputs(model: Path, samples: NamedArrays) -> NamedArrays:
    """Return a model's outputs for samples, each of shape (n, ...), computed in a process of its own.

    Raises:
        StageError: when the model fails on them, or takes too long.
    """
    return run_in_subprocess(_outputs_of, model, samples, timeout_s=TIMEOUT_S, memory_bytes=MEMORY_BYTES).value


def _outputs_of(model: Path, samples: NamedArrays) -> NamedArrays:
    session = open_session(model, level="basic" if is_large_file(model) else "all")
    return batched_inference(session, samples).run(TRIED)


def _try(model: Path, shapes: dict[str, tuple[int, ...]], texts: NamedArrays | None) -> TrialRun:
    proto = read_untrusted_graph(model)
    require_local_data(proto, model)
    declare_outputs(proto)
    own, declared = Signature.find(proto), signature_from_graph(proto)
    known: dict[str, Any] = {"opset": opset_versions(proto).get("ai.onnx", 0)}
    if own is not None:
        known |= {"layout": own.layout, "preprocessing": own.preprocessing, "own": own}
    if not declared.inputs:
        raise StageError(f"{model}: it has no inputs, so that it returns the same whatever comes. Fix: export it again")
    for value in required_inputs(proto.graph):
        kind, known_scalar = value.type, shapes.get(value.name) == ()
        if kind.HasField("tensor_type") and not kind.tensor_type.HasField("shape") and not known_scalar:
            fix = "Fix: export it with named axes, or set them with onnx.helper.make_tensor_value_info"
            raise StageError(f"{model}: the input {value.name!r} declares no shape, not even its number of axes. {fix}")
    session = open_session(model, level="basic" if is_large_file(model) else "all")
    try:
        return try_session(session, declared, shapes, texts).replace(**known)
    except StageError as error:
        raise StageError(f"{model}: {error}") from error


def try_session(session: Any, declared: Signature, shapes: Shapes, first: NamedArrays | None = None) -> TrialRun:
    """Run a session on a few samples, as a batch and one by one; `first` are the user's, and else they are random."""
    whole = are_whole_inputs(declared, shapes)
    axes = axis_lengths(declared, shapes, whole=whole)
    single = {spec.shape[0]: 1 for spec in declared.inputs if spec.shape and isinstance(spec.shape[0], str)}
    problems = list[str]() if whole or has_batch(declared) else ["the inputs and outputs share no first axis"]
    for no_batch_axis in (True,) if whole or problems else (False, True):
        lengths = single | axes if no_batch_axis and not whole else axes
        samples = first or draw_samples(declared, TRIED, lengths, no_batch_axis=no_batch_axis)
        try:
            outputs = _outputs(session, samples)
        except StageError as error:
            problems.append(one_line(error))
            continue
        sizes = {name: ["any" if is_ragged(array) else n for n in array.shape[1:]] for name, array in outputs.items()}
        types = {name: dtype_name(array) for name, array in outputs.items()}
        specs = tuple(TensorSpec(name=name, dtype=types[name], shape=("batch", *sizes[name])) for name in outputs)
        trial = TrialRun(
            inputs=declared.inputs,
            outputs=specs,
            dynamic_axes=lengths,
            no_batch_axis=no_batch_axis,
            reason=problems[0] if problems else "",
        )
        return trial.replace(states=_states(trial, samples, outputs))
    which = "random samples" if first is None else "the first samples"
    raise StageError(f"it fails on {which}: {problems[-1]}")


def _states(trial: TrialRun, samples: NamedArrays, outputs: NamedArrays) -> States:
    """Return the states that names, types and shapes say; the outputs' first one that is none is the primary one."""
    inputs, returned = sample_types(samples), sample_types(outputs)
    trial = trial.replace(states=states_by_name(inputs, returned))
    others = [name for name in returned if name not in dict(trial.states).values()]
    primary = trial.scores.name if trial.scores else next(iter(others), "")
    fixed = [spec.name for spec in trial.inputs if not spec.is_open]
    return states_by_shape(inputs, returned, trial.states, primary, fixed)


def _outputs(session: Any, samples: NamedArrays) -> NamedArrays:
    """Return the outputs for some samples; `StageError` where a sample's depend on those beside it."""
    if observe := getattr(session, "observe", None):  # no framework declares its outputs
        observe(samples)
    single = batched_inference(session, samples)
    alone, together, again = single.run(1), single.run(TRIED), single.run(TRIED)
    for name, array in alone.items():
        mode = "Fix: save the model in evaluation mode (PyTorch's eval()), or "
        if not _same(again[name], together[name]):
            what = f"the output {name!r} differs from call to call, as the model draws random numbers"
            raise StageError(f"{what}. {mode}with the noise as an input")
        if array.shape != together[name].shape or (array.dtype.kind == "f" and not _same(array, together[name])):
            what = f"the output {name!r} of a sample depends on the other samples of its batch"
            raise StageError(f"{what}. {mode}for a batch of one")
    return alone


def _same(array: Array, other: Array) -> bool:
    if array.shape != other.shape or array.dtype.kind != "f":
        return np.array_equal(array, other)
    scale = np.max(np.abs(array), initial=1e-9, where=np.isfinite(array))
    return np.allclose(array, other, rtol=0, atol=CLOSE * float(scale), equal_nan=True)


def are_whole_inputs(declared: Signature, shapes: Shapes) -> bool:
    """Return whether the given shapes are those of whole inputs; raise `ConfigError` where they fit neither."""
    names = {spec.name: spec for spec in declared.inputs}
    extra = set()
    for name, shape in shapes.items():
        if name not in names:
            raise ConfigError(f"--shape {name}: unknown input; available: {', '.join(names)}")
        extra.add(len(names[name].shape) - len(shape))
    if extra - {0, 1} or len(extra) > 1:
        ranks = ", ".join(f"{spec.name} has {len(spec.shape)} axes" for spec in declared.inputs)
        fix = "give every shape, or array, without the batch axis, or every one with all axes"
        raise ConfigError(f"--shape and --data: {fix} ({ranks})")
    return extra == {0}


def axis_lengths(declared: Signature, shapes: Shapes, *, whole: bool) -> dict[str, int]:
    """Return the lengths of the open axes; raise `ConfigError` where one stays open, or does not fit."""
    lengths: dict[str, int] = {}
    for spec in declared.inputs:
        axes = spec.shape if whole else spec.shape[1:]
        sample = shapes.get(spec.name)
        for place, axis in enumerate(axes):
            if sample is None and isinstance(axis, str):
                shape = ", ".join(map(str, spec.shape))
                example = "x".join(str(a) if isinstance(a, int) else "224" for a in axes)
                raise ConfigError(
                    f"the input {spec.name!r} is [{shape}], which leaves the shape of a sample open. "
                    f"Fix: set it, for example with --shape {spec.name}={example}, or give samples with --data FILE.npz"
                )
            length = sample[place] if sample else axis
            if isinstance(axis, int) and length != axis:
                raise ConfigError(
                    f"a sample of {spec.name}: axis {place} is {length}; the model fixes it to {axis}. "
                    "Fix: bring samples (--data) or name a shape (--shape) that the model takes"
                )
            if isinstance(axis, str) and lengths.setdefault(axis, int(length)) != length:
                elsewhere = f"{lengths[axis]} elsewhere"
                raise ConfigError(f"--shape {spec.name}: the axis {axis!r} is {length} here and {elsewhere}")
    return lengths
