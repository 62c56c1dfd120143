"""The networks of the labelled problems that neither PyTorch nor the project has."""

from typing import TYPE_CHECKING

from frameworks.torch.detector import STRIDE, cell_centers, convolution

if TYPE_CHECKING:
    import torch

HIDDEN = 32
"""Values of the recurrent network's state."""


def convolutional(outputs: int, *, width: int = 16, cells: int = 4) -> "torch.nn.Module":
    """Return a network from gray images to (n, outputs); `cells` are left of an image after two poolings."""
    from torch import nn

    features = nn.Sequential(convolution(1, width), convolution(width, 2 * width), nn.MaxPool2d(2))
    last = nn.Sequential(convolution(2 * width, 2 * width), nn.MaxPool2d(2), nn.Flatten())
    return nn.Sequential(features, last, nn.Linear(2 * width * cells, 64), nn.ReLU(), nn.Linear(64, outputs))


def perceptron(inputs: int, outputs: int) -> "torch.nn.Module":
    """Return a network for tables."""
    from torch import nn

    return nn.Sequential(nn.Linear(inputs, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, outputs))


def line_reader(classes: int) -> "torch.nn.Module":
    """Return a network from images (n, 1, 8, w) to scores by position, shape (n, w / 2, classes)."""
    from torch import nn
    from torchvision.ops import Permute

    low = convolution(1, 16), convolution(16, 32), nn.MaxPool2d(2), convolution(32, 48)
    high = nn.Conv2d(48, 64, (4, 5), padding=(0, 2)), nn.ReLU(), nn.Flatten(2), Permute([0, 2, 1])
    return nn.Sequential(*low, *high, nn.Linear(64, classes))


def recurrent(classes: int) -> "torch.nn.Module":
    """Return a gated recurrent unit (Cho et al., EMNLP 2014) whose state is an input and an output."""
    import torch
    from torch import nn

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gates, self.new = nn.Linear(8 + HIDDEN, 2 * HIDDEN), nn.Linear(8 + HIDDEN, HIDDEN)
            self.head = nn.Linear(HIDDEN, classes)

        def forward(self, row: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            reset, update = self.gates(torch.cat([row, state], 1)).sigmoid().split(HIDDEN, 1)
            new = self.new(torch.cat([row, reset * state], 1)).tanh()
            after = update * state + (1 - update) * new
            return self.head(after), after

    return Recurrent()


def decoded(detector: "torch.nn.Module", cells: int) -> "torch.nn.Module":
    """Return the detector with one output in the form `yolov8`, for square images of `cells` by `cells` cells."""
    import torch
    from torch import nn

    class Decoded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.detector, self.centers = detector, nn.Buffer(cell_centers(cells, cells).T.contiguous())

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            scores, distances = self.detector(images)
            before, after = (distances.flatten(2).exp() * STRIDE).split(2, 1)
            center, size = self.centers + (after - before) / 2, before + after
            return torch.cat([center, size, scores.flatten(2).sigmoid()], 1)

    return Decoded()
