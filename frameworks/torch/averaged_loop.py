"""Training of dense predictors: warmup, and the average of the latest weights is what is validated and kept."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from pydantic import Field

from frameworks.augmentation import ColorAugmentation
from frameworks.torch.network import run_network, tensor
from frameworks.torch.training_loop import TorchLoop, WarmupConfig
from gauntlet.core.signature import Signature
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.splits import Split, Splits
from gauntlet.problems import problem_of

if TYPE_CHECKING:
    import torch

AVERAGE_DECAY = 0.995
"""Of the moving average of the weights, for each step (Tarvainen and Valpola, Mean Teachers, NeurIPS 2017)."""


class AveragedLoopConfig(WarmupConfig):
    """Hyperparameters of a training whose steps are many and small."""

    patience: int = Field(1000, ge=1, description="stop after this many epochs without a lower validation loss")
    batch_size: int = Field(16, ge=2, description="images per step")
    learning_rate: float = Field(3e-3, gt=0, description="of AdamW, after the warmup and before the cosine schedule")
    warmup: float = Field(0.05, ge=0, lt=1, description="share of all steps in which the learning rate rises")
    augment: ColorAugmentation | None = Field(None, description="random changes to the training images")


class AveragedLoop(TorchLoop):
    """Trains with a moving average of the weights, on images in the memory format that convolutions prefer.

    `loss` takes the network's outputs and the labels, shape (n, ...).
    """

    def __init__(
        self,
        config: AveragedLoopConfig,
        network: "torch.nn.Module",
        loss: "Callable[..., torch.Tensor]",
        data: Splits,
        signature: Signature,
        workspace: Workspace,
    ) -> None:
        import torch
        from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

        super().__init__(config, network.to(memory_format=torch.channels_last), data, workspace)
        self.signature, self.augment, self.loss = signature, config.augment, loss
        averaging = get_ema_multi_avg_fn(AVERAGE_DECAY)  # type: ignore[no-untyped-call]
        self.average = AveragedModel(network, multi_avg_fn=averaging, use_buffers=True)

    @property
    def validated(self) -> "torch.nn.Module":
        """The average of the network's weights."""
        return self.average.module

    def _images(self, split: Split, chosen: npt.NDArray[np.int64], rng: np.random.Generator) -> "torch.Tensor":
        """Return training images, augmented, on the device."""
        import torch

        images = split.take(chosen)[self.signature.inputs[0].name]
        if self.augment is not None:
            images = self.augment.recolored(images, rng, self.signature.layout, self.signature.preprocessing)
        return tensor(images).to(self.device).contiguous(memory_format=torch.channels_last)

    def _loss(self, split: Split, chosen: npt.NDArray[np.int64], rng: np.random.Generator) -> "torch.Tensor":
        outputs = self.network(self._images(split, chosen, rng))
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        assert split.labels is not None
        return self.loss(*outputs, tensor(split.labels[chosen]).to(self.device))

    def _validate(self) -> tuple[float, float]:
        """Return the loss and the primary metric of the average on the validation images."""
        import torch

        split, problem = self.data["validation"], problem_of(self.signature)
        labels = split.labels
        assert labels is not None
        arrays = run_network(self.validated, [split.take(slice(None))[self.signature.inputs[0].name]])
        loss = self.loss(*map(torch.from_numpy, arrays), tensor(labels))
        names = [spec.name for spec in self.signature.outputs]
        predictions = problem.predictions_of(dict(zip(names, arrays, strict=True)))
        assert predictions is not None
        return float(loss), problem.score(predictions, labels)[problem.metric]

    def _step(self) -> None:
        super()._step()
        self.average.update_parameters(self.network)

    def _state(self) -> dict[str, Any]:
        return super()._state() | {"average": self.average}
