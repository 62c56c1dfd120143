"""What a model answers, whether it is a Keras network or a SavedModel: inputs and outputs by name, as numpy arrays.

TensorFlow computes pictures in NHWC. Inputs come in the layout of the signature and are transposed where it is NCHW;
outputs stay as the model gives them.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gauntlet.core.arrays import NamedArrays
from gauntlet.core.errors import StageError
from gauntlet.core.signature import Signature, TensorSpec
from gauntlet.frameworks.keras.tensorflow_setup import start_tensorflow

TO_NHWC = (0, 2, 3, 1)
TAKEN = {"float": "fiub", "int": "iu", "uint": "iu", "bool": "b"}
"""TensorFlow's words for types, without their sizes, and the kinds of numpy's that are given to each."""


@dataclass(frozen=True)
class CallableModel:
    """A model that can be asked: its inputs in the order in which `call` takes them, as it has them itself.

    A shape is NHWC for pictures; None is an axis of any length.
    """

    inputs: tuple[tuple[str, str, tuple[int | None, ...]], ...]
    outputs: tuple[str, ...]
    call: Callable[..., Sequence[Any]]
    parameters: int

    def names(self, signature: Signature) -> dict[str, str]:
        """Return the signature's name of each of the model's inputs, in the model's order.

        One input takes what the data has, whatever it is called; several are found by their names.

        Raises:
            StageError: when they do not fit: in their number, name, type or shape.
        """
        specs = {spec.name: spec for spec in signature.inputs}
        own = [name for name, _, _ in self.inputs]
        if len(own) != len(specs) or (len(own) > 1 and set(own) != set(specs)):
            raise StageError(
                f"the model's inputs are {own}, the data has {sorted(specs)}; give the data the same names"
            )
        pairs = {name: name if len(own) > 1 else next(iter(specs)) for name in own}
        for name, dtype, shape in self.inputs:
            _check(name, dtype, shape, specs[pairs[name]], signature.layout)
        return pairs

    def tensors(self, inputs: NamedArrays, signature: Signature) -> list[Any]:
        """Return samples in the signature's layout as the arguments of a call."""
        import tensorflow as tf

        names = self.names(signature)
        return [
            tf.constant(np.ascontiguousarray(nhwc(inputs[names[name]], signature.layout), dtype))
            for name, dtype, _ in self.inputs
        ]

    def predict(self, inputs: NamedArrays, signature: Signature, batch_size: int = 64) -> NamedArrays:
        """Return the outputs for samples in the signature's layout, each of shape (n, ...).

        Raises:
            StageError: when the model fails, or does not answer one entry a sample.
        """
        names = self.names(signature)
        count = len(next(iter(inputs.values())))
        parts = []
        for start_at in range(0, count, batch_size):
            rows = slice(start_at, start_at + batch_size)
            given = self.tensors({name: array[rows] for name, array in inputs.items()}, signature)
            try:
                parts.append([value.numpy() for value in self.call(*given)])
            except Exception as error:  # TensorFlow's many
                shapes = {name: inputs[name].shape for name in names.values()}
                raise StageError(f"the model fails on inputs of shape {shapes}: {str(error)[:300]}") from error
        found = {
            name: np.concatenate(values) for name, values in zip(self.outputs, zip(*parts, strict=True), strict=True)
        }
        for name, array in found.items():
            if array.shape[:1] != (count,):
                raise StageError(f"output '{name}' is {array.shape} for {count} samples, not one entry a sample")
        return found


def nhwc(array: np.ndarray, layout: str) -> np.ndarray:
    """Return pictures, shape (n, ...) in the layout that is named, as TensorFlow takes them; all else as it is."""
    return array.transpose(TO_NHWC) if layout == "NCHW" and array.ndim == 4 else array


def from_network(network: Any) -> CallableModel:
    """Return a Keras network as a model, in inference mode.

    Raises:
        StageError: when nobody knows its inputs.
    """
    import tensorflow as tf

    keras = start_tensorflow()
    try:
        inputs, outputs = list(network.inputs), list(network.outputs)
    except (AttributeError, TypeError, ValueError) as error:
        raise StageError(f"the model does not say what its inputs are ({error}); call it once, then save it") from error
    names = [tensor.name for tensor in inputs]
    given = [tf.TensorSpec(_free(tensor.shape), tensor.dtype) for tensor in inputs]

    def call(*tensors: Any) -> Any:
        asked = tensors[0] if len(tensors) == 1 else dict(zip(names, tensors, strict=True))
        return keras.tree.flatten(network(asked, training=False))

    return CallableModel(
        inputs=tuple((t.name, tf.as_dtype(t.dtype).name, tuple(t.shape)) for t in inputs),
        outputs=_distinct(getattr(network, "output_names", None) or [tensor.name for tensor in outputs]),
        call=tf.function(call, input_signature=given),
        parameters=network.count_params(),
    )


def from_saved_model(folder: Path, signature: str) -> CallableModel:
    """Return one signature of a SavedModel as a model.

    Raises:
        StageError: when TensorFlow cannot read the folder, or it has no such signature.
    """
    start_tensorflow()
    import tensorflow as tf

    try:
        loaded = tf.saved_model.load(str(folder))
    except Exception as error:  # TensorFlow's errors, and those of the protocol buffers
        raise StageError(f"{folder}: not a SavedModel that TensorFlow {tf.__version__} can read ({error})") from error
    if signature not in loaded.signatures:
        raise StageError(f"{folder}: has no signature {signature!r}; train.signature may be: {[*loaded.signatures]}")
    function = loaded.signatures[signature]
    specs = function.structured_input_signature[1]
    outputs = tuple(function.structured_outputs)

    def call(*tensors: Any) -> Sequence[Any]:
        found = function(**dict(zip(specs, tensors, strict=True)))
        return [found[name] for name in outputs]

    # The loaded object must outlive its function, which knows the variables only by weak references.
    call.model = loaded  # type: ignore[attr-defined]
    return CallableModel(
        inputs=tuple((name, spec.dtype.name, tuple(spec.shape)) for name, spec in specs.items()),
        outputs=outputs,
        call=call,
        parameters=sum(int(np.prod(v.shape)) for v in getattr(loaded, "variables", ())),
    )


def _check(name: str, dtype: str, shape: Sequence[int | None], spec: TensorSpec, layout: str) -> None:
    axes = [*spec.shape]
    if layout == "NCHW" and len(axes) == 4:
        axes = [axes[place] for place in TO_NHWC]
    if len(axes) != len(shape) or any(a is not None and a != b for a, b in zip(shape[1:], axes[1:], strict=True)):
        wanted = ["n", *("any" if axis is None else axis for axis in shape[1:])]
        raise StageError(
            f"the model's input '{name}' takes {wanted} (pictures as NHWC); the data's '{spec.name}' is {axes} after "
            f"any transposition (layout {layout}); change the data's size or layout"
        )
    if shape[0] is not None:
        raise StageError(f"the model's input '{name}' takes {shape[0]} samples at once; save it with a free first axis")
    if np.dtype(spec.dtype).kind not in TAKEN.get(dtype.rstrip("0123456789"), ""):
        raise StageError(
            f"the model's input '{name}' takes {dtype}; the data's '{spec.name}' is {spec.dtype}: convert it"
        )


def _free(shape: Sequence[int | None]) -> tuple[int | None, ...]:
    return (None, *shape[1:])


def _distinct(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names with numbers behind those that come again: a network that is called twice answers twice."""
    seen: Counter[str] = Counter()
    found = []
    for name in names:
        found.append(f"{name}_{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return tuple(found)
