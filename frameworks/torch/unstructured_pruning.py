"""Unstructured pruning: set single weights to zero. The file compresses better; the kernels here are not faster."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
from pydantic import Field

from frameworks.torch.network_size import prunable_layers
from frameworks.torch.pruning import TorchPruning
from gauntlet.core.errors import StageError
from gauntlet.core.frozen import Percent
from gauntlet.core.report import Check
from tasks.prune import NetworkSize

if TYPE_CHECKING:
    import torch


class Unstructured(TorchPruning):
    """Set the weights of least magnitude to zero, over all convolutions and linear layers together."""

    kind: Literal["unstructured"] = "unstructured"
    sparsity: Percent = Field(0.8, description="share of the weights to set to zero; a whole percent")

    @property
    def name(self) -> str:
        """The candidate's name: in `sparse-80`, 80 % of the weights are zero."""
        return f"sparse-{100 * self.sparsity:.0f}"

    def pruned(self, network: "torch.nn.Module", inputs: Sequence["torch.Tensor"]) -> "torch.nn.Module":
        """Return the network itself: zeroed weights get no gradient, so AdamW keeps them. StageError without layers."""
        weights = [layer.weight for _, layer in prunable_layers(network)]
        if not weights:
            raise StageError("the network has no convolution and no linear layer, so there is nothing to prune")
        magnitudes = np.concatenate([weight.detach().abs().numpy().ravel() for weight in weights])
        count = round(self.sparsity * len(magnitudes))
        threshold = float(np.partition(magnitudes, count - 1)[count - 1]) if count else -1.0
        for weight in weights:
            mask = weight.detach().abs() > threshold
            weight.data *= mask
            weight.register_hook(mask.__mul__)  # type: ignore[no-untyped-call]
        return network

    def checks(self, before: NetworkSize, after: NetworkSize) -> tuple[Check, ...]:
        """Return the check that enough weights are zero."""
        limit = self.sparsity - 1 / before.parameters  # the count of zeros is rounded
        detail = "smaller when compressed, not faster"
        return (Check(name="prune.sparsity", value=after.sparsity, op=">=", limit=limit, detail=detail),)
