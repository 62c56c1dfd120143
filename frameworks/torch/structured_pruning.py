"""Structured pruning: remove whole channels, so that every kernel computes less."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from pydantic import Field

from frameworks.torch.channel_pruning import prune_to_budget
from frameworks.torch.network_size import prunable_layers
from frameworks.torch.pruning import TorchPruning
from gauntlet.core.errors import StageError
from gauntlet.core.frozen import Percent
from gauntlet.core.report import Check
from tasks.prune import NetworkSize

if TYPE_CHECKING:
    import torch


MAX_UNUSED_SHARE = 0.25
Share = Annotated[float, Field(gt=0, le=1)]


class Structured(TorchPruning):
    """Remove the channels of least magnitude, the same share of every layer but those of `layers`, to meet a budget."""

    kind: Literal["structured"] = "structured"
    macs_fraction: Percent = Field(0.5, description="largest share of operations (MACs) to keep; a whole percent")
    round_to: int = Field(16, ge=1, le=256, description="layers keep a multiple of this number of channels")
    layers: dict[str, Share] = Field(
        default_factory=dict,
        description="share of the channels that layers keep, by a pattern of their names: {'layer1.*': 1}",
    )

    @property
    def name(self) -> str:
        """The candidate's name: `pruned-25` keeps 25 % of the operations."""
        return f"pruned-{100 * self.macs_fraction:.0f}" + ("-layers" if self.layers else "")

    def pruned(self, network: "torch.nn.Module", inputs: Sequence["torch.Tensor"]) -> "torch.nn.Module":
        """Return a pruned copy to fine-tune. Raises StageError when it does not run or its output shapes change."""
        return prune_to_budget(network, inputs, self.macs_fraction, self.round_to, self.layers)

    def checks(self, before: NetworkSize, after: NetworkSize) -> tuple[Check, ...]:
        """Return the checks that the budget is met and mostly used."""
        share = after.macs / before.macs
        detail, remedy = f"{after.macs} of {before.macs} MACs are left", ""
        if share > self.macs_fraction:
            detail += f"; no layer can be narrower than {self.round_to} channels"
            detail += f", and prune.layers fixes those named {', '.join(self.layers)}" if self.layers else ""
            remedy = "lower prune.round_to" + (" or the shares of prune.layers" if self.layers else "")
            remedy += ", or raise prune.macs_fraction"
        return (
            Check(
                name="prune.macs_fraction", value=share, op="<=", limit=self.macs_fraction, detail=detail, remedy=remedy
            ),
            Check(
                name="prune.unused_macs",
                value=1 - share / self.macs_fraction,
                op="<=",
                limit=MAX_UNUSED_SHARE,
                severity="warning",
                detail=f"unused share of the budget: channels are removed in steps of {self.round_to}",
            ),
        )


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
