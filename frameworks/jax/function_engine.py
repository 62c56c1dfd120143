"""Engine for JAX: a user's function with its parameters, compiled."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from frameworks.jax.function import load, named_outputs
from frameworks.jax.network import use_cpu
from gauntlet.core.arrays import Array, NamedArrays
from gauntlet.runtime.batched_inference import batched_inference
from gauntlet.runtime.engines.base import Engine, TensorInfo, type_name


class JaxFunctionEngine(Engine):
    """A function under `jax.jit`, with its parameters compiled in as constants; `options` are those of the target."""

    def __init__(self, model: Path, threads: int, options: dict[str, Any]) -> None:
        os.environ["PJRT_NPROC"] = str(threads)  # JAX has no call for it; its CPU client reads this when it is created
        use_cpu()
        import jax

        self.runtime = f"jax {jax.__version__}"
        function, self.spec = load(model, trust=options.get("trust", False))
        self.inputs = [TensorInfo(each.name, type_name(each.dtype), each.shape) for each in self.spec.inputs]
        self.outputs = []

        @jax.jit
        def call(*inputs: Any) -> tuple[Any, ...]:
            outputs = named_outputs(function(*inputs), self.spec.code.name)
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
