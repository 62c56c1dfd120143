"""Training of the detector: as other networks, but with the average of its latest weights."""

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from frameworks.torch.averaged_loop import AveragedLoop
from frameworks.torch.detection_loss import detection_loss
from frameworks.torch.network import run_network, tensor
from gauntlet.datasets.splits import Split
from gauntlet.problems import problem_of

if TYPE_CHECKING:
    import torch


class TorchDetectionLoop(AveragedLoop):
    """Trains a detector on boxes."""

    def _loss(self, split: Split, chosen: npt.NDArray[np.int64], rng: np.random.Generator) -> "torch.Tensor":
        scores, distances = self.network(self._images(split, chosen, rng))
        return detection_loss(scores, distances, _truth(split, chosen).to(self.device))

    def _validate(self) -> tuple[float, float]:
        """Return the loss and the primary metric of the average on the validation images."""
        import torch

        split, problem = self.data["validation"], problem_of(self.signature)
        everything = np.arange(len(split))
        arrays = run_network(self.validated, [split.take(everything)[self.signature.inputs[0].name]])
        scores, distances = map(torch.from_numpy, arrays)
        loss = detection_loss(scores, distances, _truth(split, everything))
        names = [spec.name for spec in self.signature.outputs]
        predictions = problem.predictions_of(dict(zip(names, arrays, strict=True)))
        assert predictions is not None and split.labels is not None
        return float(loss), problem.score(predictions, split.labels)[problem.metric]


def _truth(split: Split, chosen: npt.NDArray[np.int64]) -> "torch.Tensor":
    assert split.labels is not None
    return tensor(split.labels[chosen])
