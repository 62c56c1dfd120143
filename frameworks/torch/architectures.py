"""Architectures by name: small ones of this project, and every classifier of torchvision."""

import itertools
import math
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

from frameworks.architecture_names import names_in_source, unknown_architecture
from gauntlet.core.errors import StageError, one_line
from gauntlet.core.frozen import Frozen

if TYPE_CHECKING:
    import torch


OURS = ("resnet18", "small-cnn", "small-vit")
PREFIX = "torchvision/"
BUILDER = re.compile(r"^@register_model\(\)\n(?:@.*\n)*def (\w+)\(", re.MULTILINE)
TWO_HEADS = ("googlenet", "inception_v3")  # each has an auxiliary classifier, used only in training


class NamedArchitecture(Frozen):
    """A network built by the name of its architecture, for one input of images."""

    kind: Literal["known"] = "known"
    architecture: str
    channels: int
    height: int
    width: int
    classes: int
    layout: Literal["NCHW", "NHWC"] = "NCHW"

    def build(self) -> "torch.nn.Module":
        """Return the network with random weights, for images in `layout`; raise StageError if it cannot be built."""
        import torch

        if self.architecture == "small-cnn":
            network = _small_cnn(self.channels, self.classes)
        elif self.architecture == "small-vit":
            network = small_vit(self.channels, self.height, self.width, self.classes)
        elif self.architecture == "resnet18":
            network = _resnet18(self.channels, self.classes)
        else:
            network = self._torchvision()
        if self.layout == "NHWC":
            from torchvision.ops import Permute

            network = torch.nn.Sequential(Permute([0, 3, 1, 2]), network)
        return network

    def inner(self, network: "torch.nn.Module") -> "torch.nn.Module":
        """Return the part of a built network that takes NCHW: the architecture itself, under its own names."""
        return network.get_submodule("1") if self.layout == "NHWC" else network

    def check_image_size(self, network: "torch.nn.Module", height: int, width: int) -> None:
        """Run the network on one image, because the smallest size is undocumented; raise StageError if it fails."""
        import torch

        size = (self.channels, height, width) if self.layout == "NCHW" else (height, width, self.channels)
        try:
            with torch.inference_mode():
                network.eval()(torch.zeros(1, *size))
        except Exception as error:  # any layer may fail in its own way
            is_data_size = (height, width) == (self.height, self.width)
            fix = "use larger ones (data.image_size)" if is_data_size else "remove this size from train.input_sizes"
            raise StageError(
                f"train.architecture: {self.architecture} does not take images of {height}x{width} pixels "
                f"({one_line(error)}). Fix: {fix}, or use another architecture"
            ) from error

    def _torchvision(self) -> "torch.nn.Module":
        import torchvision

        name = self.architecture.removeprefix(PREFIX)
        if self.channels != 3:
            raise StageError(
                f"train.architecture: torchvision's {name} takes images of 3 channels, the data has {self.channels}. "
                f"Fix: repeat the channel in the data, or use one of {', '.join(OURS)}, which take any number"
            )
        arguments: dict[str, Any] = {"num_classes": self.classes, "weights": None}
        if name in TWO_HEADS:
            arguments |= {"aux_logits": False, "init_weights": True}
        if name.startswith("vit_"):  # its position embeddings have one size
            arguments |= {"image_size": self.height}
        if name.startswith("maxvit"):
            arguments |= {"input_size": (self.height, self.width)}
        try:
            network: torch.nn.Module = torchvision.models.get_model(name, **arguments)
        except Exception as error:  # the builders raise many types
            raise StageError(
                f"train.architecture: {name} cannot be built for images of {self.height}x{self.width} pixels "
                f"({one_line(error)}). Fix: change data.image_size, or use another architecture"
            ) from error
        return network


@lru_cache
def known_names() -> tuple[str, ...]:
    """Return the names of all architectures."""
    names = names_in_source("torchvision", "models", BUILDER)
    return (*OURS, *sorted(names - set(OURS)), *(f"{PREFIX}{name}" for name in sorted(names & set(OURS))))


def check_name(name: str) -> str:
    """Return the name; raise ValueError, with the nearest known names, if it is unknown."""
    known = known_names()
    if name in known or (name.startswith(PREFIX) and name.removeprefix(PREFIX) in known):
        return name
    raise unknown_architecture(name, known)


def _resnet18(channels: int, classes: int) -> "torch.nn.Module":
    """Return the CIFAR variant: the usual first layers would reduce images of 32x32 to 8x8."""
    from torch import nn
    from torchvision.models import resnet18

    network: nn.Module = resnet18(num_classes=classes)
    network.conv1 = nn.Conv2d(channels, 64, kernel_size=3, stride=1, padding=1, bias=False)
    network.maxpool = nn.Identity()
    return network


def _small_cnn(channels: int, classes: int) -> "torch.nn.Module":
    from torch import nn

    layers: list[nn.Module] = []
    for before, after in itertools.pairwise((channels, 16, 32, 64)):
        convolution = nn.Conv2d(before, after, 3, padding=1, bias=False)
        layers += [convolution, nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, classes))


PATCH = 8
"""Pixels of a patch's side."""
LAYERS, HEADS, WIDTH, HIDDEN_WIDTH = 4, 3, 192, 768
"""Those of DeiT-Tiny (Touvron et al., ICML 2021), with a third of its layers."""


def small_vit(channels: int, height: int, width: int, classes: int) -> "torch.nn.Module":
    """Return a network from images (n, channels, height, width) to scores (n, classes).

    Raises:
        StageError: for images that are not square, or whose side is no multiple of the patch's.
    """
    if height != width or height % PATCH:
        raise StageError(
            f"train.architecture: small-vit takes square images with sides that are a multiple of {PATCH} pixels, the "
            f"data has {height}x{width}. Fix: set data.image_size, or use another architecture"
        )
    from torch import nn
    from torchvision.models.vision_transformer import VisionTransformer

    network: nn.Module = VisionTransformer(
        image_size=height,
        patch_size=PATCH,
        num_layers=LAYERS,
        num_heads=HEADS,
        hidden_dim=WIDTH,
        mlp_dim=HIDDEN_WIDTH,
        num_classes=classes,
    )
    network.conv_proj = nn.Conv2d(channels, WIDTH, kernel_size=PATCH, stride=PATCH)
    for block in network.get_submodule("encoder.layers").children():
        block.self_attention = _self_attention()
    return network


def _self_attention() -> "torch.nn.Module":
    """Return self-attention (n, tokens, width) with a product each for queries, keys and values.

    PyTorch's own has one weight for all three, and its export is not in the form that ONNX Runtime fuses.
    """
    import torch
    from torch import nn

    size = WIDTH // HEADS

    class SelfAttention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query, self.key, self.value, self.output = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

        def forward(self, tokens: torch.Tensor, *_: torch.Tensor, **__: bool) -> tuple[torch.Tensor, None]:
            queries, keys, values = (self._heads(part(tokens)) for part in (self.query, self.key, self.value))
            shares = torch.softmax(queries @ keys.transpose(-2, -1) / math.sqrt(size), dim=-1)
            mixed = (shares @ values).transpose(1, 2)
            return self.output(mixed.reshape(mixed.shape[0], mixed.shape[1], WIDTH)), None

        def _heads(self, tokens: torch.Tensor) -> torch.Tensor:
            return tokens.reshape(tokens.shape[0], tokens.shape[1], HEADS, size).transpose(1, 2)

    return SelfAttention()
