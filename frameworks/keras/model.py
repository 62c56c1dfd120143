"""A Keras network or a SavedModel as one callable: inputs and outputs by name, as numpy arrays."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from frameworks.arguments import Arguments
from frameworks.keras.expected_images import expected_images
from frameworks.keras.tensorflow_setup import start_tensorflow
from frameworks.session import LoadedModel, distinct_outputs
from gauntlet.core.arrays import NamedArrays, require_range
from gauntlet.core.errors import StageError
from gauntlet.core.signature import Signature, TensorSpec
from gauntlet.frameworks.trial_run import ExpectedImages

TO_NHWC, TO_NCHW = (0, 2, 3, 1), (0, 3, 1, 2)
ACCEPTED_KINDS = {"float": "fiub", "int": "iu", "uint": "iu", "bool": "b"}
"""TensorFlow's type names without sizes -> the kinds of numpy types that are converted to each."""


@dataclass(frozen=True)
class CallableModel:
    """A loaded model; `inputs` are (name, type, shape) in the order of `call`'s arguments; None is a dynamic axis.

    TensorFlow takes images in NHWC: inputs are transposed if the signature's layout is NCHW; outputs are unchanged.
    """

    inputs: tuple[tuple[str, str, tuple[int | None, ...]], ...]
    outputs: tuple[str, ...]
    call: Callable[..., Sequence[Any]]
    parameters: int
    images: ExpectedImages | None = None
    framework: str = field(default_factory=lambda: f"keras {start_tensorflow().__version__}")

    def names(self, signature: Signature) -> dict[str, str]:
        """Return model input -> signature input, in the model's order; raise StageError if they do not match.

        A single input is matched whatever its name.
        """
        specs = {spec.name: spec for spec in signature.inputs}
        own = [name for name, _, _ in self.inputs]
        if len(own) != len(specs) or (len(own) > 1 and set(own) != set(specs)):
            raise StageError(f"the model's inputs are {own}, the data's {sorted(specs)}. Fix: rename the data's inputs")
        pairs = {name: name if len(own) > 1 else next(iter(specs)) for name in own}
        for name, dtype, shape in self.inputs:
            _check_input(name, dtype, shape, specs[pairs[name]], signature.layout)
        return pairs

    def with_open_axes(self, signature: Signature) -> Signature:
        """Return the signature with the axes that the model leaves open, named as in `loaded`."""
        names, own = self.names(signature), dict[str, tuple[int | str, ...]]()
        for name, _, shape in self.inputs:
            axes = _named_axes(name, shape)
            is_nchw = signature.layout == "NCHW" and len(axes) == 4
            own[names[name]] = tuple(axes[index] for index in TO_NCHW) if is_nchw else axes
        return signature.replace(inputs=tuple(spec.replace(shape=own[spec.name]) for spec in signature.inputs))

    def tensors(self, inputs: NamedArrays, signature: Signature) -> list[Any]:
        """Return samples in the signature's layout as the arguments of a call."""
        import tensorflow as tf

        names = self.names(signature)
        for name, dtype, _ in self.inputs:
            if dtype != "string":
                require_range(names[name], inputs[names[name]], dtype)
        return [
            tf.constant(
                np.ascontiguousarray(nhwc(inputs[names[name]], signature.layout), None if dtype == "string" else dtype)
            )
            for name, dtype, _ in self.inputs
        ]

    def predict(self, inputs: NamedArrays, signature: Signature, batch_size: int = 64) -> NamedArrays:
        """Return the outputs for samples in the signature's layout, each of shape (n, ...), or raise StageError."""
        count = len(next(iter(inputs.values())))
        parts = []
        for start in range(0, count, batch_size):
            batch = {name: array[start : start + batch_size] for name, array in inputs.items()}
            tensors = self.tensors(batch, signature)
            try:
                parts.append([value.numpy() for value in self.call(*tensors)])
            except Exception as error:  # TensorFlow raises many types
                shapes = {name: inputs[name].shape for name in self.names(signature).values()}
                raise StageError(f"the model fails on inputs of shape {shapes}: {str(error)[:300]}") from error
        columns = zip(self.outputs, zip(*parts, strict=True), strict=True)
        outputs = {name: np.concatenate(values) for name, values in columns}
        for name, array in outputs.items():
            if array.shape[:1] != (count,):
                raise StageError(f"output '{name}' is {array.shape} for {count} samples; expected one row per sample")
        return outputs

    def loaded(self, architecture: str) -> LoadedModel:
        """Return the model as it is called in its own layout, NHWC; raise StageError if it fixes the batch."""
        for name, _, shape in self.inputs:
            _require_free_batch(name, shape)

        def call(feed: NamedArrays) -> NamedArrays:
            import tensorflow as tf

            values = self.call(*(tf.constant(array) for array in feed.values()))
            return {name: value.numpy() for name, value in zip(self.outputs, values, strict=True)}

        return LoadedModel(
            framework=self.framework,
            architecture=architecture,
            parameters=self.parameters,
            call=call,
            arguments=Arguments(tuple(name for name, _, _ in self.inputs)),
            images=self.images,
            declared=tuple(
                TensorSpec(name=name, dtype="str" if dtype == "string" else dtype, shape=_named_axes(name, shape))
                for name, dtype, shape in self.inputs
            ),
        )


def _named_axes(name: str, shape: Sequence[int | None]) -> tuple[int | str, ...]:
    return ("batch", *(f"{name}_{index}" if a is None else a for index, a in enumerate(shape[1:], start=1)))


def nhwc(array: np.ndarray, layout: str) -> np.ndarray:
    """Return NCHW images, shape (n, ...), as NHWC; any other array unchanged."""
    return array.transpose(TO_NHWC) if layout == "NCHW" and array.ndim == 4 else array


def from_network(network: Any) -> CallableModel:
    """Return a Keras network in inference mode; raise StageError if its inputs are unknown."""
    import tensorflow as tf

    keras = start_tensorflow()
    _require_float(network)
    # A Sequential that was built by a call keeps the batch of that call, which only states need.
    parts = [*network._flatten_layers()] if isinstance(network, package_of(network).Sequential) else ()
    is_open = bool(parts) and not any(getattr(part, "stateful", False) for part in parts)
    try:
        network = functional(network)
        inputs, output_names = list(network.inputs), list(network.output_names)
    except (AttributeError, TypeError, ValueError) as error:
        raise StageError(f"the model does not declare its inputs ({error}). Fix: call it once, then save it") from error
    specs = [tf.TensorSpec((None, *tensor.shape[1:]), tensor.dtype) for tensor in inputs]

    def call(*tensors: Any) -> Any:
        argument = tensors[0] if len(tensors) == 1 else [*tensors]
        return keras.tree.flatten(network(argument, training=False))

    return CallableModel(
        inputs=tuple(
            (t.name, tf.as_dtype(t.dtype).name, (None if is_open else t.shape[0], *t.shape[1:])) for t in inputs
        ),
        outputs=tuple(distinct_outputs(dict.fromkeys(_distinct(output_names)), [tensor.name for tensor in inputs])),
        call=tf.function(call, input_signature=specs),
        parameters=network.count_params(),
        images=expected_images(network),
        framework=f"{package_of(network).__name__} {package_of(network).__version__}",
    )


def _require_float(network: Any) -> None:
    """Raise StageError where a layer computes in bfloat16, which neither tf2onnx nor ONNX Runtime does."""
    layers = network._flatten_layers() if hasattr(network, "_flatten_layers") else ()
    if name := next((layer.name for layer in layers if layer.compute_dtype == "bfloat16"), None):
        raise StageError(
            f"the layer {name} computes in bfloat16, which cannot be exported. Fix: build the network under "
            "keras.config.set_dtype_policy('float32'), load these weights into it, and save it"
        )


def package_of(network: Any) -> Any:
    """Return the package that a network is of: Keras 3, or `tf_keras`, which reads files of Keras 2."""
    start_tensorflow()
    return sys.modules[type(network).__module__.partition(".")[0]]


def functional(network: Any) -> Any:
    """Return a network that is Sequential, or takes a dictionary, as a functional one of a list with the same layers.

    Only a functional network names its outputs, and tf2onnx needs their names. Any other network is returned as it is.
    """
    keras = package_of(network)
    if not isinstance(network, keras.Sequential) and not isinstance(getattr(network, "_inputs_struct", None), dict):
        return network
    return keras.Model(network.inputs, network.outputs, name=network.name)


def from_saved_model(folder: Path, signature: str) -> CallableModel:
    """Return one signature of a SavedModel; raise StageError if it or the folder cannot be read."""
    start_tensorflow()
    import tensorflow as tf

    try:
        loaded = tf.saved_model.load(str(folder))
    except Exception as error:  # errors of TensorFlow and of protobuf
        raise StageError(f"{folder}: not a SavedModel that TensorFlow {tf.__version__} can read ({error})") from error
    if signature not in loaded.signatures:
        raise StageError(f"{folder}: has no signature {signature!r}; train.signature may be: {[*loaded.signatures]}")
    function = loaded.signatures[signature]
    specs = dict(sorted(function.structured_input_signature[1].items()))  # each process reads another order
    outputs = tuple(sorted(function.structured_outputs))

    def call(*tensors: Any) -> Sequence[Any]:
        results = function(**dict(zip(specs, tensors, strict=True)))
        return [results[name] for name in outputs]

    call.model = loaded  # type: ignore[attr-defined] # the function holds only weak references to the variables
    return CallableModel(
        inputs=tuple((name, spec.dtype.name, tuple(spec.shape)) for name, spec in specs.items()),
        outputs=tuple(distinct_outputs(dict.fromkeys(outputs), specs)),
        call=call,
        parameters=sum(int(np.prod(v.shape)) for v in getattr(loaded, "variables", ())),
    )


def _check_input(name: str, dtype: str, shape: Sequence[int | None], spec: TensorSpec, layout: str) -> None:
    axes = [*spec.shape]
    if layout == "NCHW" and len(axes) == 4:
        axes = [axes[index] for index in TO_NHWC]
    if len(axes) != len(shape) or any(a is not None and a != b for a, b in zip(shape[1:], axes[1:], strict=True)):
        expected = ["n", *("any" if axis is None else axis for axis in shape[1:])]
        raise StageError(
            f"the model's input '{name}' takes {expected} (images as NHWC); the data's '{spec.name}' is {axes} after "
            f"any transposition (layout {layout}). Fix: change the data's size or layout"
        )
    _require_free_batch(name, shape)
    if dtype == "string":
        if spec.dtype != "str":
            raise StageError(f"the model's input '{name}' takes texts; the data's '{spec.name}' is {spec.dtype}")
    elif np.dtype(spec.dtype).kind not in ACCEPTED_KINDS.get(dtype.rstrip("0123456789"), ""):
        raise StageError(f"the model's input '{name}' is {dtype}, the data's '{spec.name}' {spec.dtype}; convert it")


def _require_free_batch(name: str, shape: Sequence[int | None]) -> None:
    if shape[0] is not None:
        raise StageError(f"the model's input '{name}' takes {shape[0]} samples at once. Fix: use a dynamic batch")


def _distinct(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names with numbers after repeated ones: a network that is called twice has two outputs."""
    earlier = [names[:index].count(name) for index, name in enumerate(names)]
    return tuple(f"{name}_{count}" if count else name for name, count in zip(names, earlier, strict=True))
