"""Architectures by name: two small ones of our own making, and every classifier that torchvision ships."""

import difflib
import importlib.util
import itertools
import re
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from gauntlet.core.errors import StageError
from gauntlet.core.frozen import Frozen

if TYPE_CHECKING:
    import torch

OURS = ("resnet18", "small-cnn")
PREFIX = "torchvision/"
BUILDER = re.compile(r"^@register_model\(\)\n(?:@.*\n)*def (\w+)\(", re.MULTILINE)
TWO_HEADS = ("googlenet", "inception_v3")  # each also classifies halfway, which only helps a training


class NamedArchitecture(Frozen):
    """How to build a network whose architecture has a name, for one input of pictures."""

    kind: Literal["known"] = "known"
    architecture: str
    channels: int
    height: int
    width: int
    classes: int
    layout: Literal["NCHW", "NHWC"] = "NCHW"

    def build(self) -> "torch.nn.Module":
        """Return the network with random weights; it takes pictures in `layout`.

        Raises:
            StageError: when it cannot be built for such pictures, or cannot compute them.
        """
        import torch

        network = _build(self)
        if self.layout == "NHWC":
            from torchvision.ops import Permute

            network = torch.nn.Sequential(Permute([0, 3, 1, 2]), network)
        return network

    def check_image_size(self, network: "torch.nn.Module", height: int, width: int) -> None:
        """Let the network compute one picture, because most have a smallest size that nobody wrote down.

        Raises:
            StageError: when it cannot.
        """
        import torch

        size = (self.channels, height, width) if self.layout == "NCHW" else (height, width, self.channels)
        picture = torch.zeros(1, *size)
        try:
            with torch.inference_mode():
                network.eval()(picture)
        except Exception as error:  # whatever a layer says about a size that it cannot take
            own = (height, width) == (self.height, self.width)
            way = "give it larger ones (data.image_size)" if own else "leave this size out of train.input_sizes"
            raise StageError(
                f"train.architecture: {self.architecture} does not take pictures of {height}x{width} pixels "
                f"({_short(error)}); "
                f"{way}, or take another architecture"
            ) from error


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


@lru_cache
def known_names() -> tuple[str, ...]:
    """Return every name that an architecture may have.

    torchvision's are read out of its source files: to ask it would be to import it, which takes seconds.
    """
    spec = importlib.util.find_spec("torchvision")
    folder = Path(spec.origin).parent / "models" if spec and spec.origin else Path()
    found = {name for file in sorted(folder.glob("*.py")) for name in BUILDER.findall(file.read_text("utf-8"))}
    return (*OURS, *sorted(found - set(OURS)), *(f"{PREFIX}{name}" for name in sorted(found & set(OURS))))


def check_name(name: str) -> str:
    """Return the name of an architecture, if it is one.

    Raises:
        ValueError: when it is none, with the nearest one.
    """
    known = known_names()
    if name in known or (name.startswith(PREFIX) and name.removeprefix(PREFIX) in known):
        return name
    near = difflib.get_close_matches(name, known, n=3)
    hint = f"; did you mean {' or '.join(near)}?" if near else f" ({', '.join(known)})"
    raise ValueError(f"no architecture has this name{hint}")


def _build(recipe: NamedArchitecture) -> "torch.nn.Module":
    if recipe.architecture == "small-cnn":
        return _small_cnn(recipe.channels, recipe.classes)
    if recipe.architecture == "resnet18":
        return _resnet18(recipe.channels, recipe.classes)
    return _torchvision(recipe)


def _resnet18(channels: int, classes: int) -> "torch.nn.Module":
    """Return the CIFAR form: pictures of 32x32 would be 8x8 after the usual first convolution and pooling."""
    from torch import nn
    from torchvision.models import resnet18

    network: nn.Module = resnet18(num_classes=classes)
    network.conv1 = nn.Conv2d(channels, 64, kernel_size=3, stride=1, padding=1, bias=False)
    network.maxpool = nn.Identity()
    return network


def _small_cnn(channels: int, classes: int) -> "torch.nn.Module":
    from torch import nn

    widths = (channels, 16, 32, 64)
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
        layers += [nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], classes))


def _torchvision(recipe: NamedArchitecture) -> "torch.nn.Module":
    import torchvision

    name = recipe.architecture.removeprefix(PREFIX)
    if recipe.channels != 3:
        raise StageError(
            f"train.architecture: torchvision's {name} takes pictures of 3 channels, the data has {recipe.channels}; "
            "repeat the channel in the data, or take resnet18 or small-cnn, which take any number"
        )
    arguments: dict[str, Any] = {"num_classes": recipe.classes, "weights": None}
    if name in TWO_HEADS:
        arguments |= {"aux_logits": False, "init_weights": True}
    if name.startswith("vit_"):  # its position codes are made for one size
        arguments |= {"image_size": recipe.height}
    if name.startswith("maxvit"):
        arguments |= {"input_size": (recipe.height, recipe.width)}
    try:
        network: torch.nn.Module = torchvision.models.get_model(name, **arguments)
    except Exception as error:  # each builder has its own way to say no
        raise StageError(
            f"train.architecture: {name} cannot be built for pictures of {recipe.height}x{recipe.width} pixels "
            f"({_short(error)}); change data.image_size, or take another architecture"
        ) from error
    return network
