"""A framework's loaded model behind the interface of an ONNX Runtime session, so that samples are batched alike."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from frameworks.arguments import Arguments
from gauntlet.core.arrays import Array, NamedArrays, dtype_name
from gauntlet.core.errors import ConfigError, StageError, one_line
from gauntlet.core.signature import Signature, Task, TensorSpec
from gauntlet.runtime.batched_inference import batched_inference
from gauntlet.runtime.engines.base import TensorInfo

if TYPE_CHECKING:  # it imports ONNX Runtime, which a worker does not need
    from gauntlet.frameworks.trial_run import ExpectedImages, Shapes, TrialRun

Call = Callable[[NamedArrays], NamedArrays]
"""One batch in the order of the model's inputs -> the outputs by name."""


@dataclass(frozen=True)
class LoadedModel:
    """A framework's model in inference mode, and what its file or its function says about its inputs.

    `arguments` are the inputs in the order of the call. `declared` are the types and shapes of those that it requires,
    where known; the first axis is the batch, a named axis is open. `narrowed` maps types of samples to those
    that the framework computes in. `module` is the framework's own object behind the call, where there is one.
    `class_count` is the number of classes where the model names them, `task` what its outputs mean where it says so.
    """

    framework: str
    architecture: str
    parameters: int
    call: Call
    arguments: Arguments = field(default_factory=Arguments)
    declared: tuple[TensorSpec, ...] = ()
    module: Any = None
    class_count: int | None = None
    task: Task | None = None
    images: "ExpectedImages | None" = None
    narrowed: Mapping[str, str] = field(default_factory=lambda: {"float64": "float32"})

    def inputs_of(self, samples: NamedArrays) -> tuple[TensorSpec, ...]:
        """Return the inputs for samples, each of shape (n, ...), as `inputs_for` does."""
        specs = [
            TensorSpec(name=name, dtype=dtype_name(array), shape=("batch", *array.shape[1:]))
            for name, array in samples.items()
        ]
        return self.inputs_for(specs)

    def inputs_for(self, specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        """Return the inputs in the order of the call, under the names of the data.

        They are matched by name; see `Arguments.call_order`. Types and shapes are the model's where it declares them.
        Raise StageError if the names do not match.
        """
        by_name = {spec.name: spec for spec in specs}
        ordered = [by_name[name] for name in self.arguments.call_order(by_name)]
        if self.declared and self.arguments.required:
            return tuple(own.replace(name=spec.name) for own, spec in zip(self.declared, ordered, strict=True))
        return tuple(spec.replace(dtype=self.narrowed.get(spec.dtype, spec.dtype)) for spec in ordered)

    def try_on(self, shapes: "Shapes", samples: NamedArrays | None, layout: str = "none") -> "TrialRun":
        """Run the model in this process, on the first of the user's samples, or else on random ones.

        `samples` are those of each input, shape (n, ...); without them, `shapes` are those that the model leaves open.

        Raises:
            ConfigError: when the shape of an input is not known, or is not the model's.
            StageError: when the model fails on the samples.
        """
        from gauntlet.frameworks.trial_run import TRIED, try_session

        first = None
        if samples is not None:
            inputs = self.inputs_of(samples)
            shapes = {spec.name: samples[spec.name].shape[1:] for spec in inputs}
            first = {name: array[:TRIED] for name, array in samples.items()}
        else:
            inputs = self.inputs_for(self.declared or self._given_by_shape(shapes))
        declared = Signature(task="arrays", inputs=inputs, outputs=(), layout="none")
        trial = try_session(FrameworkSession(inputs, self.call), declared, shapes, first)
        return trial.replace(layout=layout, class_count=self.class_count, task=self.task, images=self.images)

    def outputs(self, inputs: tuple[TensorSpec, ...], samples: NamedArrays) -> NamedArrays:
        """Return the outputs for samples of its inputs; raise StageError when it fails on them."""
        from gauntlet.frameworks.trial_run import TRIED

        session = FrameworkSession(inputs, self.call)
        session.observe(samples)
        return batched_inference(session, samples).run(TRIED)

    def _given_by_shape(self, shapes: "Shapes") -> tuple[TensorSpec, ...]:
        """Return inputs of the given shapes; raise `ConfigError` where one has none, or there is no such input."""
        names = self.arguments.required or tuple(shapes)
        missing = [name for name in names if name not in shapes]
        if missing or not names:
            name = missing[0] if missing else "INPUT"
            raise ConfigError(
                f"the model does not say the shape of its input {name!r}. Fix: give the shape of one sample, for "
                f"example --shape {name}=3x224x224, or samples with --data FILE.npz"
            )
        known = (*names, *self.arguments.optional)
        unknown = [name for name in shapes if name not in known]
        if unknown:
            raise ConfigError(f"--shape {unknown[0]}: unknown input; available: {', '.join(known)}")
        return tuple(TensorSpec(name=name, dtype="float32", shape=("batch", *shape)) for name, shape in shapes.items())


def type_name(dtype: str) -> str:
    """Return ONNX Runtime's tensor type for NumPy's name of a type; text of any length is `string`."""
    words = {"float32": "float", "float64": "double", "object": "string"}
    return f"tensor({'string' if dtype.startswith('str') else words.get(dtype, dtype)})"


def distinct_outputs(outputs: Mapping[str, Any], inputs: Collection[str]) -> dict[str, Any]:
    """Return outputs under names that no input has, as in a graph: `x_out` for an output that is called as `x` is."""
    return {f"{name}_out" if name in inputs else name: value for name, value in outputs.items()}


class FrameworkSession:
    """A loaded model for inputs of known types and shapes, as `gauntlet.runtime.batched_inference` calls it.

    `observe` must have seen samples before the first run: no framework declares its outputs.
    """

    def __init__(self, inputs: Sequence[TensorSpec], call: Call) -> None:
        self.inputs = tuple(inputs)
        self.outputs: tuple[str, ...] = ()
        self._call = call

    def observe(self, samples: NamedArrays) -> None:
        """Call the model once, to learn the names of its outputs; raise StageError if it fails."""
        calls = batched_inference(self, samples)
        self.outputs = tuple(self._outputs(calls.feed(0, calls.batch(1))))

    def get_inputs(self) -> list[TensorInfo]:
        """Return the inputs, in the order of the call."""
        return [TensorInfo(spec.name, type_name(spec.dtype), spec.shape) for spec in self.inputs]

    def get_outputs(self) -> list[TensorInfo]:
        """Return the outputs that `observe` found; their types and shapes are unknown."""
        return [TensorInfo(name, type_name("float32"), ()) for name in self.outputs]

    def run(self, names: Sequence[str], feed: NamedArrays) -> list[Array]:
        """Return the named outputs of one call; raise StageError if the model fails."""
        outputs = self._outputs(feed)
        missing = [name for name in names if name not in outputs]
        if missing:
            raise StageError(f"the model returns {sorted(outputs)}, and returned {missing[0]!r} before")
        return [outputs[name] for name in names]

    def _outputs(self, feed: NamedArrays) -> NamedArrays:
        try:
            return distinct_outputs(self._call(feed), feed)
        except StageError:
            raise
        except Exception as error:  # each framework raises its own types
            shapes = {name: f"{array.dtype}{list(np.shape(array))}" for name, array in feed.items()}
            raise StageError(f"the model fails on inputs {shapes}: {one_line(error)}") from error
