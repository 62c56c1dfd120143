"""Training of the segmenter: cross-entropy and Dice loss."""

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from gauntlet.datasets.splits import Split
from gauntlet.datasets.truth import IGNORED_PIXEL
from gauntlet.frameworks.torch.averaged_loop import AveragedLoop
from gauntlet.frameworks.torch.network import run_network, tensor
from gauntlet.problems import problem_of

if TYPE_CHECKING:
    import torch

BACKGROUND_WEIGHT = 0.4
"""Of class 0 in the cross-entropy, because most pixels belong to it."""
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
    from torch.nn.functional import cross_entropy, one_hot

    weights = torch.ones(scores.shape[1], device=scores.device)
    weights[0] = BACKGROUND_WEIGHT
    entropy = cross_entropy(scores, truth, weights, ignore_index=IGNORED_PIXEL)
    counted = (truth != IGNORED_PIXEL)[:, None]
    wanted = one_hot(torch.where(counted[:, 0], truth, 0), scores.shape[1]).movedim(3, 1) * counted
    shares = scores.softmax(dim=1) * counted
    both, either = ((part.sum(dim=(0, 2, 3))) for part in (shares * wanted, shares + wanted))
    occurs = wanted.sum(dim=(0, 2, 3)) > 0
    dice = 1 - (2 * both[occurs] / either[occurs]).mean() if occurs.any() else scores.sum() * 0
    loss: torch.Tensor = entropy + DICE_WEIGHT * dice
    return loss


def _truth(split: Split, chosen: npt.NDArray[np.int64]) -> "torch.Tensor":
    assert split.labels is not None
    return tensor(split.labels[chosen].astype(np.int64))
