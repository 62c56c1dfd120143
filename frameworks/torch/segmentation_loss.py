"""The loss of the segmenter: cross-entropy and Dice loss."""

from typing import TYPE_CHECKING

from gauntlet.datasets.truth import IGNORED_PIXEL

if TYPE_CHECKING:
    import torch

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
