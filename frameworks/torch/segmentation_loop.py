"""Training of the segmenter: cross-entropy and Dice loss."""

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from frameworks.torch.averaged_loop import AveragedLoop
from frameworks.torch.network import run_network, tensor
from gauntlet.datasets.splits import Split
from gauntlet.datasets.truth import IGNORED_PIXEL
from gauntlet.problems import problem_of

if TYPE_CHECKING:
    import torch

DICE_WEIGHT = 0.5


class TorchSegmentationLoop(AveragedLoop):
    """Trains a segmenter on masks."""

    def _loss(self, split: Split, chosen: npt.NDArray[np.int64], rng: np.random.Generator) -> "torch.Tensor":
        scores = self.network(self._images(split, chosen, rng))
        return segmentation_loss(scores, _truth(split, chosen).to(self.device))

    def _validate(self) -> tuple[float, float]:
        """Return the loss and the primary metric of the average on the validation images."""
        import torch

        split, problem = self.data["validation"], problem_of(self.signature)
        everything = np.arange(len(split))
        [scores] = run_network(self.validated, [split.take(everything)[self.signature.inputs[0].name]])
        loss = segmentation_loss(torch.from_numpy(scores), _truth(split, everything))
        predictions = problem.predictions(scores)
        assert predictions is not None and split.labels is not None
        return float(loss), problem.score(predictions, split.labels)[problem.metric]


def segmentation_loss(scores: "torch.Tensor", truth: "torch.Tensor") -> "torch.Tensor":
    """Return cross-entropy and soft Dice loss (Milletari et al., V-Net, 3DV 2016) of logits (n, classes, h, w).

    `truth` has the class of each pixel, shape (n, h, w); pixels of the class 255 do not count.
    """
    import torch
    from torch.nn.functional import log_softmax, nll_loss

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


def _truth(split: Split, chosen: npt.NDArray[np.int64]) -> "torch.Tensor":
    assert split.labels is not None
    return tensor(split.labels[chosen].astype(np.int64))
