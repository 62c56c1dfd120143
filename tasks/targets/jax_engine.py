"""Flax in a worker: the network as it was trained, under `jax.jit`."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tasks.errors import StageError
from tasks.runtime.engines import Array, Engine, Feed, Port, type_name
from tasks.sources.flax import load, use_cpu


def unavailable(options: dict[str, Any]) -> str | None:
    """Return None: that the packages are there is known."""
    return None


class Loaded(Engine):
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

    def given(self, samples: Feed) -> None:
        """Take the name of the one input from the samples: the network's own has none.

        Raises:
            StageError: when there are several, or they are no pictures of its size and layout.
        """
        if len(samples) != 1:
            raise StageError(f"the network takes one input; there are samples for {sorted(samples)}")
        [(self.name, pictures)] = samples.items()
        if pictures.shape[1:] != self._axes():
            taken = f"{self._axes()} ({self.recipe.layout})"
            raise StageError(f"the network takes pictures of {taken}; those of '{self.name}' are {pictures.shape[1:]}")

    def get_inputs(self) -> Sequence[Port]:
        """Return the pictures, in the layout that the training saw."""
        return [Port(self.name, type_name("float32"), ["batch", *self._axes()])]

    def _axes(self) -> tuple[int, ...]:
        one = self.recipe
        sides = (one.height, one.width)
        return (one.channels, *sides) if one.layout == "NCHW" else (*sides, one.channels)

    def get_outputs(self) -> Sequence[Port]:
        """Return the scores."""
        return [Port("scores", type_name("float32"), ["batch", self.recipe.classes])]

    def bound(self, feed: Feed) -> tuple[Callable[[], Any], Callable[[Any], list[Array]]]:
        """Put the pictures where JAX wants them, the channels last; a call is waited for."""
        import jax

        pictures = jax.device_put(self.recipe.prepare(feed[self.name]))
        return lambda: self.call(pictures).block_until_ready(), lambda answer: [np.asarray(answer)]

    def placement(self, feed: Feed) -> dict[str, Any]:
        """Return the layers, all where the answers are."""
        call, _ = self.bound(feed)
        layers = [
            [str(place), getattr(layer, "__name__", type(layer).__name__)]
            for place, layer in enumerate(self.network.layers)
        ]
        return {"asked": "cpu", "nodes": {", ".join(sorted(d.platform for d in call().devices())): layers}}
