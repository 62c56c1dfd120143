"""Training of the detector: as other networks, but with the average of its latest weights."""

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gauntlet.core.signature import Signature
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.splits import Split, Splits
from gauntlet.frameworks.torch.detection_loss import detection_loss
from gauntlet.frameworks.torch.network import run_network, tensor
from gauntlet.frameworks.torch.training_loop import TorchLoop
from gauntlet.frameworks.training import LoopConfig
from gauntlet.problems import problem_of

if TYPE_CHECKING:
    import torch

AVERAGE_DECAY = 0.995
"""Of the moving average of the weights, for each step (Tarvainen and Valpola, Mean Teachers, NeurIPS 2017)."""


class TorchDetectionLoop(TorchLoop):
    """Trains a detector on boxes; validated and kept is the average of its weights."""

    def __init__(
        self, config: LoopConfig, network: "torch.nn.Module", data: Splits, signature: Signature, workspace: Workspace
    ) -> None:
        import torch
        from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

        super().__init__(config, network.to(memory_format=torch.channels_last), data, workspace)
        self.signature = signature
        averaging = get_ema_multi_avg_fn(AVERAGE_DECAY)  # type: ignore[no-untyped-call]
        self.average = AveragedModel(network, multi_avg_fn=averaging, use_buffers=True)

    @property
    def validated(self) -> "torch.nn.Module":
        """The average of the network's weights."""
        return self.average.module

    def _loss(self, split: Split, chosen: npt.NDArray[np.int64], rng: np.random.Generator) -> "torch.Tensor":
        import torch

        images = tensor(split.take(chosen)[self.signature.inputs[0].name]).to(self.device)
        scores, distances = self.network(images.contiguous(memory_format=torch.channels_last))
        return detection_loss(scores, distances, _truth(split, chosen).to(self.device))

    def _step(self) -> None:
        super()._step()
        self.average.update_parameters(self.network)

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

    def _state(self) -> dict[str, Any]:
        return super()._state() | {"average": self.average}


def _truth(split: Split, chosen: npt.NDArray[np.int64]) -> "torch.Tensor":
    assert split.labels is not None
    return tensor(split.labels[chosen])
