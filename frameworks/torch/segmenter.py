"""A small segmenter: U-Net (Ronneberger et al., MICCAI 2015) from half of the resolution on, with a pixel shuffle."""

from typing import TYPE_CHECKING, Literal

from frameworks.torch.detector import convolution, residual
from gauntlet.core.frozen import Frozen

if TYPE_CHECKING:
    import torch

WIDTHS = (24, 48, 96)
"""Channels at strides 2, 4 and 8."""
SIZE_MULTIPLE = 8


class SegmenterSpec(Frozen):
    """The segmenter, for images of one number of channels and any size that is a multiple of 8."""

    kind: Literal["segmenter"] = "segmenter"
    channels: int
    classes: int

    def build(self) -> "torch.nn.Module":
        """Return the network with random weights; see `_segmenter` for its output."""
        return _segmenter(self.channels, self.classes)


def _segmenter(channels: int, classes: int) -> "torch.nn.Module":
    """Return a network from images (n, channels, h, w) to logits (n, classes, h, w).

    The last layer computes the four pixels of each cell of the half resolution (Shi et al., CVPR 2016).
    """
    from torch import nn

    fine, middle, deep = WIDTHS

    class Segmenter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fine = convolution(channels, fine, stride=2)
            self.middle = residual(fine, middle, stride=2)
            self.deep = nn.Sequential(residual(middle, deep, stride=2), residual(deep, deep))
            self.from_deep, self.from_middle = nn.Conv2d(deep, middle, 1), nn.Conv2d(middle, fine, 1)
            self.join_middle, self.join_fine = residual(middle, middle), convolution(fine, 2 * fine)
            self.up = nn.Upsample(scale_factor=2)
            self.scores = nn.Sequential(nn.Conv2d(2 * fine, 4 * classes, 1), nn.PixelShuffle(2))

        def forward(self, images: "torch.Tensor") -> "torch.Tensor":
            fine = self.fine(images)
            middle = self.middle(fine)
            middle = self.join_middle(middle + self.up(self.from_deep(self.deep(middle))))
            scores: torch.Tensor = self.scores(self.join_fine(fine + self.up(self.from_middle(middle))))
            return scores

    return Segmenter()
