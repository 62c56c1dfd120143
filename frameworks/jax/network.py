"""Flax NNX networks: build, save, load and run one."""

import importlib.util
import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, PositiveInt

from gauntlet.core.arrays import Array, NamedArrays, read_arrays
from gauntlet.core.errors import StageError
from gauntlet.core.frozen import Frozen
from gauntlet.frameworks.training import Device
from gauntlet.runtime.resources import has_gpu

if TYPE_CHECKING:
    from flax import nnx

BATCH = 64
SPEC_KEY = "recipe"
GPU_PLUGINS = ("jax_cuda13_plugin", "jax_cuda12_plugin")


class SmallCnn(Frozen):
    """Convolution, batch normalization, ReLU and 2x2 pooling per width; then global average pooling; scores."""

    channels: int = Field(ge=1)
    classes: int = Field(ge=1)
    height: int = Field(ge=1, description="pixels")
    width: int = Field(ge=1, description="pixels")
    layout: Literal["NCHW", "NHWC"] = Field(description="of the input images; the network itself takes NHWC")
    widths: tuple[PositiveInt, ...] = Field((16, 32, 64), min_length=1, description="channels after each convolution")

    def build(self, seed: int = 0) -> "nnx.Sequential":
        """Return an untrained network for images in NHWC; raise StageError if they are too small."""
        use_cpu()
        import jax.numpy as jnp
        from flax import nnx

        if min(self.height, self.width) >> len(self.widths) == 0:
            raise StageError(
                f"train.widths: each of the {len(self.widths)} widths halves the image; {self.height}x{self.width} "
                "pixels are too few. Fix: use fewer widths, or larger images (data.image_size)"
            )
        rngs = nnx.Rngs(seed)
        layers: list[Callable[..., Any]] = []
        for before, after in itertools.pairwise((self.channels, *self.widths)):
            layers += [nnx.Conv(before, after, (3, 3), padding="SAME", use_bias=False, rngs=rngs)]
            layers += [nnx.BatchNorm(after, momentum=0.9, rngs=rngs), nnx.relu]
            layers += [partial(nnx.max_pool, window_shape=(2, 2), strides=(2, 2))]
        layers += [partial(jnp.mean, axis=(1, 2)), nnx.Linear(self.widths[-1], self.classes, rngs=rngs)]
        return nnx.Sequential(*layers)

    def prepare(self, images: Array) -> npt.NDArray[np.float32]:
        """Return images as the network takes them: float32, NHWC."""
        floats = np.asarray(images, dtype=np.float32)
        return floats.transpose(0, 2, 3, 1) if self.layout == "NCHW" else floats


def use_cpu() -> None:
    """Keep JAX on the CPU, without warnings about unused devices; a GPU is used only by `training_device`."""
    import jax

    platforms = "cpu"
    if has_gpu() and any(map(importlib.util.find_spec, GPU_PLUGINS)):
        platforms = "cpu,cuda"  # the first is the default, where all but a training on the GPU is computed
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    jax.config.update("jax_platforms", platforms)  # type: ignore[no-untyped-call]


@contextmanager
def training_device(choice: Device) -> Iterator[None]:
    """Have JAX compute on the device to train on; raise StageError if `cuda` is asked for and JAX has no GPU."""
    import jax

    use_cpu()
    device = jax.devices("cpu")[0]
    if choice != "cpu":
        with suppress(RuntimeError):  # there is no such platform
            device = jax.devices("cuda")[0]
    if choice == "cuda" and device.platform == "cpu":
        raise StageError(
            f"device: cuda, but JAX {jax.__version__} finds no GPU here. Fix: set device to auto or cpu, check the "
            "driver with nvidia-smi, or install JAX's plug-in: pip install 'jax[cuda13]'"
        )
    with jax.default_device(device), jax.default_matmul_precision("float32"):
        yield


def get_weights(network: "nnx.Module") -> NamedArrays:
    """Return a copy of a network's weights and batch statistics, by their path in it."""
    return {_name(path): np.array(variable[...]) for path, variable in _variables(network)}


def set_weights(network: "nnx.Module", weights: NamedArrays) -> None:
    """Give a network the weights that `get_weights` returned."""
    import jax.numpy as jnp
    from flax import nnx

    variables = [(path, variable.replace(jnp.asarray(weights[_name(path)]))) for path, variable in _variables(network)]
    nnx.update(network, nnx.from_flat_state(variables))


def _variables(network: "nnx.Module") -> Any:
    from flax import nnx

    return nnx.to_flat_state(nnx.state(network, (nnx.Param, nnx.BatchStat)))


def _name(path: tuple[object, ...]) -> str:
    return "/".join(str(part) for part in path)


def save(path: Path, spec: SmallCnn, network: "nnx.Module") -> None:
    """Write one `.npz` file of plain arrays: the weights, and the spec as JSON."""
    with path.open("wb") as file:
        np.savez(file, allow_pickle=False, **{SPEC_KEY: np.array(spec.model_dump_json())}, **get_weights(network))


def load(path: Path) -> tuple["nnx.Sequential", SmallCnn]:
    """Return the trained network, in evaluation mode, and its spec."""
    from flax import nnx

    weights = read_arrays(path)
    spec = SmallCnn.model_validate_json(str(weights.pop(SPEC_KEY)))
    network: Any = nnx.eval_shape(spec.build)  # without values: all of them are in the file
    set_weights(network, weights)
    network.eval()
    return network, spec


def scores_function(network: "nnx.Module", spec: SmallCnn) -> Callable[[Any, Array], npt.NDArray[np.float32]]:
    """Return a function (state, images) -> scores, shape (n, classes).

    The state is what `split_state` returns for a network of this spec; the images are in the spec's layout. The
    function is compiled once: the last batch is padded to the size of the others.
    """
    import jax
    from flax import nnx

    graph = nnx.graphdef(network)

    @jax.jit
    def scores(state: Any, images: Any) -> Any:
        merged: Any = nnx.merge(graph, *state)
        merged.eval()
        return merged(images)

    def run(state: Any, images: Array) -> npt.NDArray[np.float32]:
        results = []
        for start in range(0, len(images), BATCH):
            part = images[start : start + BATCH]
            full = np.resize(part, (BATCH, *part.shape[1:]))
            results.append(np.asarray(scores(state, spec.prepare(full)), dtype=np.float32)[: len(part)])
        return np.concatenate(results)

    return run


def split_state(network: "nnx.Module") -> tuple[Any, Any]:
    """Return the trainable weights, and the rest of a network's state."""
    from flax import nnx

    parts: Any = nnx.split(network, nnx.Param, ...)
    return parts[1], parts[2]
