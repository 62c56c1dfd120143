"""Unstructured pruning: single weights become zero. The file compresses better; no kernel here gets faster by it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

import numpy as np
from pydantic import Field

from tasks.errors import StageError
from tasks.prune.percent import Percent
from tasks.prune.size import NetworkSize, layers
from tasks.report import Check
from tasks.sources.torch.loop import LoopConfig

if TYPE_CHECKING:
    import torch


class Unstructured(LoopConfig):
    """Set the weights of the least magnitude to zero, over all convolutions and linear layers together."""

    kind: Literal["unstructured"] = "unstructured"
    sparsity: Percent = Field(0.8, description="share of the weights that become zero; a whole percent")
    epochs: int = Field(3, ge=1, le=1000, description="of fine-tuning")

    @property
    def name(self) -> str:
        """The candidate's name: in `sparse-80`, 80 % of the weights are zero."""
        return f"sparse-{100 * self.sparsity:.0f}"

    @contextmanager
    def cut(self, network: "torch.nn.Module", inputs: Sequence["torch.Tensor"]) -> Iterator["torch.nn.Module"]:
        """Yield the network itself to fine-tune: what is zero gets no gradient, so AdamW leaves it zero.

        Raises:
            StageError: when it has no layer with weights to cut.
        """
        weights = [layer.weight for _, layer in layers(network)]
        if not weights:
            raise StageError("the network has no convolution and no linear layer, so there is nothing to prune")
        sizes = np.concatenate([weight.detach().abs().numpy().ravel() for weight in weights])
        count = round(self.sparsity * len(sizes))
        largest_cut = float(np.partition(sizes, count - 1)[count - 1]) if count else -1.0
        hooks = []
        for weight in weights:
            mask = weight.detach().abs() > largest_cut
            weight.data *= mask
            hooks.append(weight.register_hook(mask.__mul__))  # type: ignore[no-untyped-call]
        try:
            yield network
        finally:
            for hook in hooks:
                hook.remove()

    def checks(self, before: NetworkSize, after: NetworkSize) -> tuple[Check, ...]:
        """Return whether enough weights are zero."""
        return (
            Check(
                name="prune.sparsity",
                value=after.sparsity,
                op=">=",
                limit=self.sparsity - 1 / before.parameters,  # half a weight cannot be cut
                detail="smaller when compressed, not faster",
            ),
        )
