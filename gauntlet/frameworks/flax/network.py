"""Flax NNX networks: how one is built, a file of plain arrays that describes itself, and what a network answers."""

import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, PositiveInt

from gauntlet.core.arrays import Array, NamedArrays
from gauntlet.core.errors import StageError
from gauntlet.core.frozen import Frozen

if TYPE_CHECKING:
    from flax import nnx

BATCH = 64
RECIPE = "recipe"


class SmallCnn(Frozen):
    """Convolution, batch normalisation, ReLU and 2x2 pooling, once a width; then the mean over the picture; scores."""

    channels: int = Field(ge=1)
    classes: int = Field(ge=1)
    height: int = Field(ge=1, description="pixels")
    width: int = Field(ge=1, description="pixels")
    layout: Literal["NCHW", "NHWC"] = Field(description="of the pictures that come in; the network itself wants NHWC")
    widths: tuple[PositiveInt, ...] = Field((16, 32, 64), min_length=1, description="channels behind each convolution")

    def build(self, seed: int = 0) -> "nnx.Sequential":
        """Return an untrained network for pictures of shape (n, height, width, channels).

        Raises:
            StageError: when the pictures are too small to be halved once a width.
        """
        use_cpu()
        import jax.numpy as jnp
        from flax import nnx

        if min(self.height, self.width) >> len(self.widths) == 0:
            raise StageError(
                f"train.widths: {len(self.widths)} widths halve a picture as often, and {self.height}x{self.width} "
                "pixels are too few for that; name fewer widths, or take larger pictures (data.image_size)"
            )
        rngs = nnx.Rngs(seed)
        layers: list[Callable[..., Any]] = []
        for before, after in itertools.pairwise((self.channels, *self.widths)):
            layers += [nnx.Conv(before, after, (3, 3), padding="SAME", use_bias=False, rngs=rngs)]
            layers += [nnx.BatchNorm(after, momentum=0.9, rngs=rngs), nnx.relu]
            layers += [partial(nnx.max_pool, window_shape=(2, 2), strides=(2, 2))]
        layers += [partial(jnp.mean, axis=(1, 2)), nnx.Linear(self.widths[-1], self.classes, rngs=rngs)]
        return nnx.Sequential(*layers)

    def prepare(self, pictures: Array) -> npt.NDArray[np.float32]:
        """Return pictures as the network takes them: floats, the channels last."""
        floats = np.asarray(pictures, dtype=np.float32)
        return floats.transpose(0, 2, 3, 1) if self.layout == "NCHW" else floats


def use_cpu() -> None:
    """Keep JAX on the processor, and from warning about the devices that it then does not use."""
    import jax

    jax.config.update("jax_platforms", "cpu")  # type: ignore[no-untyped-call]


def get_weights(network: "nnx.Module") -> NamedArrays:
    """Return a copy of a network's weights and batch statistics, by their path in it."""
    return {_name(path): np.array(variable[...]) for path, variable in _variables(network)}


def set_weights(network: "nnx.Module", weights: NamedArrays) -> None:
    """Give a network the weights that `weights_of` returned."""
    import jax.numpy as jnp
    from flax import nnx

    found = [(path, variable.replace(jnp.asarray(weights[_name(path)]))) for path, variable in _variables(network)]
    nnx.update(network, nnx.from_flat_state(found))


def _variables(network: "nnx.Module") -> Any:
    from flax import nnx

    return nnx.to_flat_state(nnx.state(network, (nnx.Param, nnx.BatchStat)))


def _name(path: tuple[object, ...]) -> str:
    return "/".join(str(part) for part in path)


def save(path: Path, recipe: SmallCnn, network: "nnx.Module") -> None:
    """Write one `.npz` file of plain arrays: the weights, and the recipe as JSON."""
    with path.open("wb") as file:
        np.savez(file, allow_pickle=False, **{RECIPE: np.array(recipe.model_dump_json())}, **get_weights(network))


def load(path: Path) -> tuple["nnx.Sequential", SmallCnn]:
    """Return the trained network, in evaluation mode, and its recipe."""
    from flax import nnx

    with np.load(path, allow_pickle=False) as file:
        weights = {name: file[name] for name in file.files}
    recipe = SmallCnn.model_validate_json(str(weights.pop(RECIPE)))
    network: Any = nnx.eval_shape(recipe.build)  # without any numbers: all of them are in the file
    set_weights(network, weights)
    network.eval()
    return network, recipe


def scores_function(network: "nnx.Module", recipe: SmallCnn) -> Callable[[Any, Array], npt.NDArray[np.float32]]:
    """Return a function of a network's parts and of pictures that gives the scores, shape (n, classes).

    The parts are what `parts_of` gives for this network, or for another one of the recipe; the pictures are in the
    recipe's layout. It is compiled once: every call has the same number of pictures, the last one is filled up.
    """
    import jax
    from flax import nnx

    graph = nnx.graphdef(network)

    @jax.jit
    def scores(parts: Any, pictures: Any) -> Any:
        merged: Any = nnx.merge(graph, *parts)
        merged.eval()
        return merged(pictures)

    def run(parts: Any, pictures: Array) -> npt.NDArray[np.float32]:
        answers = []
        for start in range(0, len(pictures), BATCH):
            part = pictures[start : start + BATCH]
            full = np.resize(part, (BATCH, *part.shape[1:]))
            answers.append(np.asarray(scores(parts, recipe.prepare(full)), dtype=np.float32)[: len(part)])
        return np.concatenate(answers)

    return run


def split_state(network: "nnx.Module") -> tuple[Any, Any]:
    """Return the weights, which gradients are taken of, and all else that a network holds."""
    from flax import nnx

    parts: Any = nnx.split(network, nnx.Param, ...)
    return parts[1], parts[2]
