"""A small anchor-free one-stage detector, and its loss: FCOS on one level (Tian et al., ICCV 2019)."""

import math
from typing import TYPE_CHECKING, Literal, NamedTuple

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


CENTER_RADIUS = 1.5 * STRIDE
"""Pixels around an object's center in which cells learn it (Tian et al., FCOS: A Simple and Strong Anchor-Free Object
Detector, TPAMI 2020)."""
BOX_WEIGHT = 2.0


class Targets(NamedTuple):
    """What each cell learns: whether it has an object, and which; all of shape (n, cells, ...)."""

    positive: "torch.Tensor"
    classes: "torch.Tensor"
    boxes: "torch.Tensor"


def cell_centers(rows: int, columns: int) -> "torch.Tensor":
    """Return x and y of the cells' centers in pixels, shape (cells, 2)."""
    import torch

    y, x = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    return (torch.stack([x, y], dim=2).reshape(-1, 2) + 0.5) * STRIDE


def assign_targets(truth: "torch.Tensor", centers: "torch.Tensor") -> Targets:
    """Give each cell near the center of an object, and within its box, the smallest such object.

    `truth` has shape (n, m, 6), see `wings.detection.detection`; objects that do not count are left out.
    """
    import torch

    boxes = truth[:, :, :4]
    sizes = boxes[:, :, 2:] - boxes[:, :, :2]
    middle = boxes[:, :, :2] + sizes / 2
    offsets = (centers[None, :, None] - middle[:, None]).abs()  # (n, cells, m, 2)
    possible = (offsets < CENTER_RADIUS) & (offsets < sizes[:, None] / 2)
    usable = (truth[:, :, 4] >= 0) & (truth[:, :, 5] > 0)
    areas = torch.where(possible.all(dim=3) & usable[:, None], sizes.prod(dim=2)[:, None], torch.inf)
    if not truth.shape[1]:
        nothing = truth.new_zeros((len(truth), len(centers)))
        return Targets(nothing.bool(), nothing.long(), torch.ones_like(nothing)[..., None].expand(-1, -1, 4))
    smallest, chosen = areas.min(dim=2)
    picked = truth.gather(1, chosen[:, :, None].expand(-1, -1, 6))
    return Targets(smallest < torch.inf, picked[:, :, 4].long(), picked[:, :, :4])


def detection_loss(scores: "torch.Tensor", distances: "torch.Tensor", truth: "torch.Tensor") -> "torch.Tensor":
    """Return the mean loss of an object's cell, from the network's outputs and the truth, shape (n, m, 6).

    The score learns the IoU that its box has, by quality focal loss (Li et al., Generalized Focal Loss, NeurIPS 2020);
    the box learns by generalized IoU (Rezatofighi et al., CVPR 2019).
    """
    import torch
    from torch.nn.functional import binary_cross_entropy_with_logits
    from torchvision.ops import generalized_box_iou_loss

    centers = cell_centers(*scores.shape[2:]).to(scores.device)
    logits, reach = scores.flatten(2).transpose(1, 2), distances.flatten(2).transpose(1, 2)
    targets = assign_targets(truth, centers)
    count = max(1, int(targets.positive.sum()))
    extent = reach[targets.positive].clamp(max=5).exp() * STRIDE
    place = centers.expand(len(truth), -1, -1)[targets.positive]
    boxes = torch.cat([place - extent[:, :2], place + extent[:, 2:]], dim=1)
    objects = targets.boxes[targets.positive]
    overlaps = _overlaps(boxes.detach(), objects)
    quality = torch.zeros_like(logits)
    image, cell = targets.positive.nonzero(as_tuple=True)
    quality[image, cell, targets.classes[targets.positive]] = overlaps
    focus = (quality - logits.sigmoid()).square()
    score_loss = (binary_cross_entropy_with_logits(logits, quality, reduction="none") * focus).sum()
    box_loss = (generalized_box_iou_loss(boxes, objects) * overlaps).sum() / overlaps.sum().clamp(min=1e-6)
    loss: torch.Tensor = score_loss / count + BOX_WEIGHT * box_loss
    return loss


def _overlaps(boxes: "torch.Tensor", other: "torch.Tensor") -> "torch.Tensor":
    """Return the intersection over union of each pair of boxes, shape (k,)."""
    import torch

    low, high = torch.maximum(boxes[:, :2], other[:, :2]), torch.minimum(boxes[:, 2:], other[:, 2:])
    shared = (high - low).clamp(min=0).prod(dim=1)
    first, second = ((box[:, 2:] - box[:, :2]).prod(dim=1) for box in (boxes, other))
    return shared / (first + second - shared)
