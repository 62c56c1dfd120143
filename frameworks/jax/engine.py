"""Engines for JAX, under `jax.jit`: a network of Flax, and a user's function with its parameters."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from frameworks.jax.function import SUFFIX, named_outputs
from frameworks.jax.function import load as load_function
from frameworks.jax.network import load, use_cpu
from frameworks.session import distinct_outputs, type_name
from gauntlet.core.arrays import Array, NamedArrays
from gauntlet.core.errors import StageError, one_line
from gauntlet.runtime.batched_inference import batched_inference
from gauntlet.runtime.engines.base import Engine, TensorInfo


class FlaxEngine(Engine):
    """A network in evaluation mode, with its weights compiled in as constants; `options` are those of the target."""

    def __init__(self, model: Path, threads: int, options: dict[str, Any]) -> None:
        import flax
        import jax

        self.runtime = f"jax {jax.__version__}, flax {flax.__version__}"
        try:
            self.network, self.spec = load(model)
        except Exception as error:  # a file of another kind raises many types
            summary = one_line(error)
            raise StageError(f"{model.name}: not a network saved by this project: {summary}") from error
        self.call: Callable[[Any], Any] = jax.jit(lambda images: self.network(images))

    def set_samples(self, samples: NamedArrays) -> None:
        """Take the input's name from the samples; raise StageError unless they are one input of the network's shape."""
        if len(samples) != 1:
            raise StageError(f"the network takes one input; there are samples for {sorted(samples)}")
        [(self.name, images)] = samples.items()
        spec, size = self.spec, (self.spec.height, self.spec.width)
        shape = (spec.channels, *size) if spec.layout == "NCHW" else (*size, spec.channels)
        if images.shape[1:] != shape:
            raise StageError(
                f"the network takes images of {shape} ({spec.layout}), not {images.shape[1:]} ({self.name})"
            )
        self.inputs = [TensorInfo(self.name, type_name("float32"), ["batch", *shape])]
        self.outputs = [TensorInfo("scores", type_name("float32"), ["batch", spec.classes])]

    def bind(self, feed: NamedArrays) -> tuple[Callable[[], Any], Callable[[Any], list[Array]]]:
        """Put the images on JAX's device, in NHWC; a call waits for the result."""
        import jax

        images = jax.device_put(self.spec.prepare(feed[self.name]))
        return lambda: self.call(images).block_until_ready(), lambda scores: [np.asarray(scores)]

    def placement(self, feed: NamedArrays) -> dict[str, Any]:
        """Return the layers, all on the devices of the outputs."""
        call, _ = self.bind(feed)
        names = [getattr(layer, "__name__", type(layer).__name__) for layer in self.network.layers]
        devices = ", ".join(sorted(device.platform for device in call().devices()))
        return {"asked": "cpu", "nodes": {devices: [[str(index), name] for index, name in enumerate(names)]}}


def load_engine(model: Path, threads: int, options: dict[str, Any]) -> Engine:
    """Return the engine of a Flax network, or of a user's function."""
    os.environ["PJRT_NPROC"] = str(threads)  # JAX has no call for it; its CPU client reads this when it is created
    use_cpu()
    if model.suffix == SUFFIX:
        return JaxFunctionEngine(model, threads, options)
    return FlaxEngine(model, threads, options)


class JaxFunctionEngine(Engine):
    """A function under `jax.jit`, with its parameters compiled in as constants; `options` are those of the target."""

    def __init__(self, model: Path, threads: int, options: dict[str, Any]) -> None:
        import jax

        self.runtime = f"jax {jax.__version__}"
        function, self.spec = load_function(model, trust=options.get("trust", False))
        self.inputs = [TensorInfo(each.name, type_name(each.dtype), each.shape) for each in self.spec.inputs]
        self.outputs = []

        @jax.jit
        def call(*inputs: Any) -> tuple[Any, ...]:
            outputs = distinct_outputs(
                named_outputs(function(*inputs), self.spec.code.name), [spec.name for spec in self.spec.inputs]
            )
            self.outputs = [TensorInfo(name, type_name(value.dtype.name), ()) for name, value in outputs.items()]
            return tuple(outputs.values())

        self.call = call

    def set_samples(self, samples: NamedArrays) -> None:
        """Call the function once, to learn its outputs."""
        calls = batched_inference(self, samples)
        call, _ = self.bind(calls.feed(0, calls.batch(1)))
        call()

    def bind(self, feed: NamedArrays) -> tuple[Callable[[], Any], Callable[[Any], list[Array]]]:
        """Put the inputs on JAX's device; a call waits for the results."""
        import jax

        arguments = [jax.device_put(feed[each.name]) for each in self.inputs]
        wait: Callable[[Any], Any] = jax.block_until_ready
        return lambda: wait(self.call(*arguments)), lambda values: [np.asarray(value) for value in values]

    def placement(self, feed: NamedArrays) -> dict[str, Any]:
        """Return the function, on the devices of its outputs."""
        call, _ = self.bind(feed)
        devices = sorted({device.platform for value in call() for device in value.devices()})
        return {"asked": "cpu", "nodes": {", ".join(devices): [["0", self.spec.code.name]]}}
