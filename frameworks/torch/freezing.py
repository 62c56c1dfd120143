"""Train a part of a network: the other layers keep their weights and their statistics bit by bit."""

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from gauntlet.core.errors import StageError

if TYPE_CHECKING:
    import torch

Trainable = Annotated[
    Literal["all", "head"] | Annotated[int, Field(ge=1)] | Annotated[tuple[str, ...], Field(min_length=1)],
    Field(description="layers to train: all, head (the last one), a number of the last, or names"),
]
MAX_NAMED = 8


def layers_of(network: "torch.nn.Module") -> list[str]:
    """Return the paths of all modules with tensors of their own, in the order in which the network defines them."""
    modules = network.named_modules()
    return [path for path, m in modules if [*m.parameters(recurse=False), *m.buffers(recurse=False)]]


def head_of(network: "torch.nn.Module") -> str:
    """Return the path of the last layer with parameters; raise StageError if the network has none."""
    layers = _with_parameters(network)
    if not layers:
        raise StageError("the network has no parameters, so there is nothing to train. Fix: remove train.fine_tune")
    return layers[-1]


def freeze(network: "torch.nn.Module", trainable: Trainable) -> "list[torch.nn.Module]":
    """Exclude all other layers from training; return them.

    Their parameters need no gradient. Whoever trains must keep them in evaluation mode, because batch normalization
    changes its statistics otherwise. Raise StageError if a name is not that of a layer.
    """
    chosen = _chosen(network, trainable)
    frozen = [network.get_submodule(path) for path in layers_of(network) if path not in chosen]
    for module in frozen:
        for parameter in module.parameters(recurse=False):
            parameter.requires_grad_(False)
    return frozen


def _chosen(network: "torch.nn.Module", trainable: Trainable) -> set[str]:
    layers = layers_of(network)
    if trainable == "all":
        return set(layers)
    if isinstance(trainable, tuple):
        names = {name: {path for path in layers if f"{path}.".startswith(f"{name}.")} for name in trainable}
        unknown = [name for name, paths in names.items() if not paths]
        if unknown:
            known = ", ".join(layers[-MAX_NAMED:])
            raise StageError(f"trainable: the network has no layer '{unknown[0]}'; its last layers are {known}")
        return set().union(*names.values())
    count = 1 if trainable == "head" else int(trainable)
    head_of(network)
    return set(layers[layers.index(_with_parameters(network)[-count:][0]) :])


def _with_parameters(network: "torch.nn.Module") -> list[str]:
    return [path for path in layers_of(network) if list(network.get_submodule(path).parameters(recurse=False))]
