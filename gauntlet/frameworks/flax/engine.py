"""Flax in a worker: the network as it was trained, under `jax.jit`."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from gauntlet.core.arrays import Array, NamedArrays
from gauntlet.core.errors import StageError
from gauntlet.frameworks.flax.network import load, use_cpu
from gauntlet.runtime.engines.base import Engine, TensorInfo, type_name


class FlaxEngine(Engine):
    """A network in evaluation mode, its weights constants of what XLA compiles."""

    def __init__(self, model: Path, threads: int, options: dict[str, Any]) -> None:
        # JAX has no call for it; its client of the processor reads this when it is made.
        os.environ["PJRT_NPROC"] = str(threads)
        use_cpu()
        import flax
        import jax

        self.runtime = f"jax {jax.__version__}, flax {flax.__version__}"
        try:
            self.network, self.recipe = load(model)
        except Exception as error:  # a file of another kind ends in many types
            raise StageError(
                f"{model.name}: not a network that this project saved: {' '.join(str(error).split())[:200]}"
            ) from error
        self.call: Callable[[Any], Any] = jax.jit(lambda pictures: self.network(pictures))

    def set_samples(self, samples: NamedArrays) -> None:
        """Take the name of the one input from the samples: the network's own has none.

        Raises:
            StageError: when there are several, or they are no pictures of its size and layout.
        """
        if len(samples) != 1:
            raise StageError(f"the network takes one input; there are samples for {sorted(samples)}")
        [(self.name, pictures)] = samples.items()
        one = self.recipe
        sides = (one.height, one.width)
        axes = (one.channels, *sides) if one.layout == "NCHW" else (*sides, one.channels)
        if pictures.shape[1:] != axes:
            taken = f"{axes} ({one.layout})"
            raise StageError(f"the network takes pictures of {taken}; those of '{self.name}' are {pictures.shape[1:]}")
        self.inputs = [TensorInfo(self.name, type_name("float32"), ["batch", *axes])]
        self.outputs = [TensorInfo("scores", type_name("float32"), ["batch", one.classes])]

    def bind(self, feed: NamedArrays) -> tuple[Callable[[], Any], Callable[[Any], list[Array]]]:
        """Put the pictures where JAX wants them, the channels last; a call is waited for."""
        import jax

        pictures = jax.device_put(self.recipe.prepare(feed[self.name]))
        return lambda: self.call(pictures).block_until_ready(), lambda answer: [np.asarray(answer)]

    def placement(self, feed: NamedArrays) -> dict[str, Any]:
        """Return the layers, all where the answers are."""
        call, _ = self.bind(feed)
        layers = [
            [str(place), getattr(layer, "__name__", type(layer).__name__)]
            for place, layer in enumerate(self.network.layers)
        ]
        return {"asked": "cpu", "nodes": {", ".join(sorted(d.platform for d in call().devices())): layers}}


def load_engine(model: Path, threads: int, options: dict[str, Any]) -> FlaxEngine:
    """Load a model; `options` are those of the target."""
    return FlaxEngine(model, threads, options)
