"""The loss of the detector: quality focal loss for the scores, generalized IoU for the boxes."""

from typing import TYPE_CHECKING, NamedTuple

from frameworks.torch.detector import STRIDE

if TYPE_CHECKING:
    import torch

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
