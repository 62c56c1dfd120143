"""A small segmenter, and its loss: U-Net (Ronneberger et al., MICCAI 2015) from half of the resolution on."""

from typing import TYPE_CHECKING, Literal

from frameworks.torch.detector import convolution, residual
from gauntlet.core.frozen import Frozen
from gauntlet.datasets.truth import IGNORED_PIXEL

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


DICE_WEIGHT = 0.5


def segmentation_loss(scores: "torch.Tensor", truth: "torch.Tensor") -> "torch.Tensor":
    """Return cross-entropy and soft Dice loss (Milletari et al., V-Net, 3DV 2016) of logits (n, classes, h, w).

    `truth` has the class of each pixel, shape (n, h, w); pixels of the class 255 do not count.
    """
    import torch
    from torch.nn.functional import log_softmax, nll_loss

    truth = truth.long()
    logarithms, counted = log_softmax(scores, dim=1), truth != IGNORED_PIXEL
    entropy = nll_loss(logarithms, truth, ignore_index=IGNORED_PIXEL, reduction="sum") / counted.sum().clamp(min=1)
    shares, classes = logarithms.exp(), torch.where(counted, truth, 0)
    right = shares.gather(1, classes[:, None])[:, 0]
    if not counted.all():
        shares, right = shares * counted[:, None], right * counted
    pixels = torch.bincount(truth[counted], minlength=scores.shape[1])
    both = torch.zeros_like(shares[0, :, 0, 0]).index_add(0, classes.flatten(), right.flatten())
    either, occurs = shares.sum(dim=(0, 2, 3)) + pixels, pixels > 0
    dice = 1 - (2 * both[occurs] / either[occurs]).mean() if occurs.any() else scores.sum() * 0
    loss: torch.Tensor = entropy + DICE_WEIGHT * dice
    return loss
