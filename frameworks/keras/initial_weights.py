"""Weights that a Keras training starts from, and the layers that it leaves as they are."""

import warnings
from pathlib import Path
from typing import Any, Literal

import numpy as np

from gauntlet.core.errors import StageError, listed, one_line

SUFFIX = ".weights.h5"
MAX_NAMED = 5


def weights_file(weights: str | None) -> Path | None:
    """Return the file that `weights` names; None for the name of published weights."""
    return Path(weights) if weights and weights.endswith(SUFFIX) else None


def load_file(network: Any, path: Path) -> tuple[str, ...]:
    """Load what `network.save_weights` wrote; return the paths of a head's weights that have other shapes.

    Such a head keeps its own weights. Raise StageError if the file cannot be read, or lacks other weights.
    """
    if not path.is_file():
        raise StageError(f"train.weights: {path}: no such file")
    own = network.get_weights()
    network.set_weights([np.full_like(array, np.nan) if array.dtype.kind == "f" else array for array in own])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what does not fit is named below
            network.load_weights(path, skip_mismatch=True)
    except Exception as error:  # a damaged file raises many types
        raise StageError(
            f"train.weights: {path}: Keras cannot read it as weights ({one_line(error)}). "
            f"Fix: write it with network.save_weights('mine{SUFFIX}')"
        ) from error
    weights, head = network.weights, {variable.path for variable in head_of(network).weights}
    missing = [variable.path for variable in weights if np.isnan(np.asarray(variable.numpy(), np.float64)).all()]
    others = [name for name in missing if name not in head]
    if others:
        raise StageError(
            f"train.weights: {path} does not fit the network: missing or of another shape: "
            f"{listed(others, MAX_NAMED)}. Fix: use the architecture that it was trained with"
        )
    for variable, array in zip(weights, own, strict=True):
        if missing and variable.path in head:
            variable.assign(array)
    return tuple(sorted(head)) if missing else ()


def load_published(network: Any, build: Any, name: str, shape: tuple[int, int, int]) -> tuple[str, ...]:
    """Load what Keras publishes for an architecture, downloaded once; return the paths of the head's own weights.

    `build` is the function of `keras.applications`. Raise StageError if there is no such name, or no network.
    """
    try:
        published = build(weights=name, include_top=False, input_shape=shape)
    except Exception as error:  # Keras raises plain ones
        raise StageError(
            f"train.weights: {name}: Keras cannot provide it for images of {shape} ({one_line(error)}). Fix: use "
            f"imagenet and images of 3 channels, where there is a network; or name a file that ends with {SUFFIX}"
        ) from error
    own = {layer.name: layer for layer in network.layers}
    for layer in published.layers:
        if layer.name in own and own[layer.name].weights:
            own[layer.name].set_weights(layer.get_weights())
    return tuple(sorted(variable.path for variable in head_of(network).weights))


def head_of(network: Any) -> Any:
    """Return the last layer with weights."""
    return [layer for layer in network.layers if layer.weights][-1]


def freeze(network: Any, trainable: Literal["all", "head"] | int) -> None:
    """Exclude all layers but the last ones from training; Keras keeps the statistics of frozen normalizations, too."""
    layers = [layer for layer in network.layers if layer.weights]
    count = {"all": len(layers), "head": 1}.get(str(trainable)) or int(trainable)
    for layer in layers[:-count]:
        layer.trainable = False
