"""Weights that a training starts from: a file, or one of torchvision's names."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from frameworks.torch.architectures import OURS, PREFIX
from frameworks.torch.weights import put_weights, read_weights, without_other_head
from gauntlet.core.errors import StageError, one_line
from gauntlet.frameworks.session import ExpectedImages

if TYPE_CHECKING:
    import torch

SUFFIXES = (".pt", ".pth", ".safetensors", ".ckpt")


def weights_file(weights: str | None) -> Path | None:
    """Return the file that `weights` names; None for a name of torchvision's."""
    return Path(weights) if weights and Path(weights).suffix in SUFFIXES else None


def start_from(network: "torch.nn.Module", weights: str, architecture: str, key: str | None) -> tuple[str, ...]:
    """Load the weights of a file, or published ones of the architecture, into a network for images in NCHW.

    Return the names of the tensors of a head of another number of classes, which were left as they are. Raise
    StageError if the weights cannot be read, or do not fit.
    """
    file = weights_file(weights)
    state = _published(weights, architecture) if file is None else read_weights(file, key)
    state, replaced = without_other_head(network, state)
    put_weights(network, state, file or weights)
    return replaced


def expected_images(network: "torch.nn.Module", weights: str | None, architecture: str) -> ExpectedImages | None:
    """Return how torchvision prepares images for published weights; None for weights of a file.

    Its GoogLeNet and Inception take images as of ImageNet only where they are built with `transform_input`.
    """
    if weights is None or weights_file(weights) is not None:
        return None
    member = _member(weights, architecture)
    how, inside = member.transforms(), getattr(network, "transform_input", True)
    mean, std = (tuple(how.mean), tuple(how.std)) if inside else ((0.5,) * 3, (0.5,) * 3)
    return ExpectedImages(f"as {member}.transforms() does", mean, std)


def _published(weights: str, architecture: str) -> "dict[str, torch.Tensor]":
    """Return torchvision's weights, downloaded once."""
    member = _member(weights, architecture)
    try:
        state: dict[str, torch.Tensor] = member.get_state_dict(
            progress=False, check_hash=True, map_location="cpu", weights_only=True
        )
    except (OSError, RuntimeError) as error:  # no network, or the download is damaged
        raise StageError(
            f"train.weights: {member} cannot be downloaded ({one_line(error)}). Fix: download {member.url} elsewhere, "
            f"and name the file: train.weights: {Path(member.url).name}"
        ) from error
    return state


def _member(weights: str, architecture: str) -> Any:
    """Return torchvision's description of published weights."""
    import torchvision

    name = architecture.removeprefix(PREFIX)
    if architecture in OURS:
        near = f" (torchvision's own is {PREFIX}{architecture})" if architecture == "resnet18" else ""
        raise StageError(
            f"train.weights: {weights}: there are no published weights for {architecture}{near}. Fix: name a file "
            f"({', '.join(SUFFIXES)}), or use an architecture of torchvision"
        )
    published = torchvision.models.get_model_weights(name)
    chosen = weights.removeprefix(f"{published.__name__}.")
    if chosen not in published.__members__:
        raise StageError(
            f"train.weights: {weights}: neither a file ({', '.join(SUFFIXES)}) nor weights of {name}; "
            f"available: {', '.join(published.__members__)}"
        )
    return published[chosen]
