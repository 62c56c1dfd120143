"""A small anchor-free one-stage detector: FCOS on one level (Tian et al., ICCV 2019)."""

import math
from typing import TYPE_CHECKING, Literal

from gauntlet.core.frozen import Frozen

if TYPE_CHECKING:
    import torch

STRIDE = 4
"""Pixels of a cell."""
WIDTHS = (16, 40, 80)
"""Channels at strides 2, 4 and 8."""
PRIOR = 0.01
"""Score of every class at the start, so that the many empty cells do not dominate (Lin et al., ICCV 2017)."""
START_DISTANCE = 0.7
"""Logarithm, in cells."""


class DetectorSpec(Frozen):
    """The detector, for images of one number of channels and any size that is a multiple of 8."""

    kind: Literal["detector"] = "detector"
    channels: int
    classes: int

    def build(self) -> "torch.nn.Module":
        """Return the network with random weights; see `_detector` for its outputs."""
        return _detector(self.channels, self.classes)


def _detector(channels: int, classes: int) -> "torch.nn.Module":
    """Return a network from images (n, channels, h, w) to what `BoxDecoding` calls `fcos`.

    Scores (n, classes, h/4, w/4) and distances (n, 4, h/4, w/4) are separate outputs, because INT8 has one scale for
    each, and what decodes them stays in float.
    """
    from torch import nn

    stem, middle, deep = WIDTHS

    class Detector(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = convolution(channels, stem, stride=2)
            self.middle = nn.Sequential(residual(stem, middle, stride=2), residual(middle, middle))
            self.deep = nn.Sequential(residual(middle, deep, stride=2), residual(deep, deep))
            self.lateral = nn.Conv2d(deep, middle, 1)
            self.up = nn.Upsample(scale_factor=2)
            self.towers = nn.ModuleList(convolution(middle, middle) for _ in range(2))
            self.scores = nn.Conv2d(middle, classes, 3, padding=1)
            self.distances = nn.Conv2d(middle, 4, 3, padding=1)
            for layer, start in ((self.scores, math.log(PRIOR / (1 - PRIOR))), (self.distances, START_DISTANCE)):
                nn.init.normal_(layer.weight, std=0.01)
                assert layer.bias is not None
                nn.init.constant_(layer.bias, start)

        def forward(self, images: "torch.Tensor") -> tuple["torch.Tensor", "torch.Tensor"]:
            fine = self.middle(self.stem(images))
            fused = fine + self.up(self.lateral(self.deep(fine)))
            return self.scores(self.towers[0](fused)), self.distances(self.towers[1](fused))

    return Detector()


def convolution(before: int, after: int, stride: int = 1) -> "torch.nn.Sequential":
    """Return a convolution of 3x3 with normalization and ReLU."""
    from torch import nn

    return nn.Sequential(nn.Conv2d(before, after, 3, stride, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU())


def residual(before: int, after: int, stride: int = 1) -> "torch.nn.Module":
    """Return a residual block of two convolutions (He et al., CVPR 2016)."""
    from torch import nn
    from torchvision.models.resnet import BasicBlock

    shortcut = None
    if stride != 1 or before != after:
        shortcut = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))
    block: nn.Module = BasicBlock(before, after, stride, shortcut)
    return block
