"""Structured pruning: whole channels go, so that every kernel has less to do."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from tasks.prune.channels import narrowed_to
from tasks.prune.percent import Percent
from tasks.prune.size import NetworkSize
from tasks.report import Check
from tasks.sources.torch.loop import LoopConfig

if TYPE_CHECKING:
    import torch

UNUSED = 0.25


class Structured(LoopConfig):
    """Remove the channels of the least magnitude, the same share of every layer, until the work fits a budget."""

    kind: Literal["structured"] = "structured"
    macs: Percent = Field(
        0.5, description="multiply-accumulate operations that may be left, as a share; a whole percent"
    )
    round_to: int = Field(
        16, ge=1, le=256, description="channels left are multiples of this; narrower layers stay as they are"
    )
    epochs: int = Field(3, ge=1, le=1000, description="of fine-tuning")

    @property
    def name(self) -> str:
        """The candidate's name: `pruned-25` has 25 % of the work left."""
        return f"pruned-{100 * self.macs:.0f}"

    @contextmanager
    def cut(self, network: "torch.nn.Module", inputs: Sequence["torch.Tensor"]) -> Iterator["torch.nn.Module"]:
        """Yield a narrower copy of the network to fine-tune.

        Raises:
            StageError: when the network does not run any more, or answers in another shape.
        """
        yield narrowed_to(network, inputs, self.macs, self.round_to)

    def checks(self, before: NetworkSize, after: NetworkSize) -> tuple[Check, ...]:
        """Return whether the budget is kept, and whether most of it is used."""
        share = after.macs / before.macs
        return (
            Check(
                name="prune.macs",
                value=share,
                op="<=",
                limit=self.macs,
                detail=f"{after.macs} of {before.macs} MACs are left"
                + (f"; no layer can be narrower than {self.round_to} channels" if share > self.macs else ""),
                remedy="lower round_to, or raise macs" if share > self.macs else "",
            ),
            Check(
                name="prune.unused_macs",
                value=1 - share / self.macs,
                op="<=",
                limit=UNUSED,
                severity="warning",
                detail=f"share of the budget that is not used: channels go in steps of {self.round_to}",
            ),
        )
