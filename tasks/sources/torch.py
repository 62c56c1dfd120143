"""PyTorch models: the architectures by name, and one file that describes itself."""

import itertools
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from tasks.signature import Signature

if TYPE_CHECKING:
    import torch

Architecture = Literal["resnet18", "small-cnn"]


def build(architecture: Architecture, channels: int, classes: int) -> "torch.nn.Module":
    """Return an untrained network for pictures of shape (channels, height, width)."""
    from torch import nn

    match architecture:
        case "resnet18":
            # The CIFAR form: pictures of 32x32 would be 8x8 after the usual first convolution and pooling.
            from torchvision.models import resnet18

            network: nn.Module = resnet18(num_classes=classes)
            network.conv1 = nn.Conv2d(channels, 64, kernel_size=3, stride=1, padding=1, bias=False)
            network.maxpool = nn.Identity()
            return network
        case "small-cnn":
            widths = (channels, 16, 32, 64)
            layers: list[nn.Module] = []
            for before, after in itertools.pairwise(widths):
                layers += [nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
                layers += [nn.MaxPool2d(2)]
            return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], classes))


def save(path: Path, architecture: Architecture, network: "torch.nn.Module", signature: Signature) -> None:
    """Write the weights with what is needed to build the network again."""
    import torch

    contents = {"architecture": architecture, "signature": signature.model_dump_json(), "state": network.state_dict()}
    torch.save(contents, path)


def load(path: Path) -> tuple["torch.nn.Module", Signature]:
    """Return the trained network, in evaluation mode, and its signature. Only tensors and plain values are read."""
    import torch

    contents = torch.load(path, map_location="cpu", weights_only=True)
    signature = Signature.model_validate_json(contents["signature"])
    network = build(contents["architecture"], int(signature.inputs[0].shape[1]), len(signature.labels))
    network.load_state_dict(contents["state"])
    return network.eval(), signature


def predict(
    network: "torch.nn.Module", inputs: npt.NDArray[np.float32], batch_size: int = 64
) -> npt.NDArray[np.float32]:
    """Return the outputs, shape (n, classes), in evaluation mode."""
    import torch

    network.eval()
    with torch.inference_mode():
        starts = range(0, len(inputs), batch_size)
        parts = [network(torch.from_numpy(inputs[start : start + batch_size])) for start in starts]
        return torch.cat(parts).numpy()


def trace(network: "torch.nn.Module", inputs: npt.NDArray[np.float32]) -> dict[str, npt.NDArray[np.generic]]:
    """Return what each leaf module computes for `inputs`, by the module's path.

    A module that is called again gets the suffix `_1`, `_2`, ..., as the exporter's names do.
    """
    seen: dict[str, npt.NDArray[np.generic]] = {}
    with _record(network, seen):
        predict(network, inputs)
    return seen


@contextmanager
def _record(network: "torch.nn.Module", seen: dict[str, npt.NDArray[np.generic]]) -> Iterator[None]:
    import torch

    calls: Counter[str] = Counter()

    def hook(path: str) -> "torch.utils.hooks.RemovableHandle":
        def keep(_module: object, _inputs: object, output: object) -> None:
            if isinstance(output, torch.Tensor):
                seen[f"{path}_{calls[path]}" if calls[path] else path] = output.numpy().copy()
                calls[path] += 1

        handle: torch.utils.hooks.RemovableHandle = modules[path].register_forward_hook(keep)
        return handle

    modules = {path: module for path, module in network.named_modules() if not list(module.children())}
    handles = [hook(path) for path in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
