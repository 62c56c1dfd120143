"""Pruning: a smaller network is fine-tuned and passes every gate as its own candidate."""

from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import Field

from gauntlet.core.artifact import Artifact
from gauntlet.core.errors import StageError
from gauntlet.core.facts import Facts
from gauntlet.core.frozen import Frozen, Kind, Number
from gauntlet.core.report import Report
from gauntlet.core.signature import Signature
from gauntlet.core.stage import stage
from gauntlet.core.unions import OneOf
from gauntlet.core.workspace import Workspace
from gauntlet.datasets import read_split
from gauntlet.datasets.golden import Golden
from gauntlet.datasets.splits import Splits
from gauntlet.frameworks.training import EpochMetrics, LoopConfig, require_labelled


class NetworkSize(Frozen):
    """The size of a network."""

    macs: int = Field(description="multiply-accumulate operations of convolutions and matrix products per sample")
    parameters: int
    sparsity: Number = Field(description="share of zeros among the weights of convolutions and linear layers")


class PruneFacts(Facts):
    """How much was pruned, and how fine-tuning went."""

    before: NetworkSize
    after: NetworkSize
    macs_share: float = Field(description="share of the multiply-accumulate operations that is left")
    channel_counts: dict[str, tuple[int, int]] = Field(description="output channels of pruned layers, before and after")
    gzip_bytes: int = Field(description="all tensors of the pruned network, concatenated and compressed by DEFLATE")
    best_epoch: int = Field(description="of fine-tuning, by validation loss; 0 without fine-tuning")
    stopped_early: bool
    history: tuple[EpochMetrics, ...]


class Pruning(Kind):
    """A kind of `prune`: a way to make a network smaller."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The candidate's name."""

    @abstractmethod
    def prune(
        self,
        network: Path,
        training: LoopConfig | None,
        data: Splits,
        signature: Signature,
        golden: Golden,
        workspace: Workspace,
    ) -> Report[PruneFacts]:
        """Prune the network in a file and fine-tune it; see `tasks.prune.prune`."""


PruneConfig = Annotated[Pruning, OneOf("prune")]


@stage(process_wide=True, any_processor=True)
def prune(
    config: PruneConfig,
    workspace: Workspace,
    *,
    network: Artifact,
    signature: Signature,
    golden: Artifact,
    splits: Mapping[str, Artifact],
    training: LoopConfig | None = None,
) -> Report[PruneFacts]:
    """Prune a network and fine-tune it as `training` says. The test images are used only for predictions at the end.

    The pruned network keeps the signature and is evaluated on the cases of `golden`. The splits `train`, `validation`
    and `test` need labels. The artifacts are `network` (a file like the input), `golden` and `predictions`; none when a
    check fails. Raises StageError when there are no labels, or the network cannot be pruned without breaking it.
    """
    loaded = {name: read_split(workspace.path(artifact)) for name, artifact in splits.items()}
    data = require_labelled(loaded, "train", "validation", "test")
    if signature.primary_output not in [spec.name for spec in signature.outputs]:
        raise StageError("fine-tuning needs the output with the class scores; name it in train.primary_output")
    cases = Golden.load(workspace.path(golden))
    return config.prune(workspace.path(network), training, data, signature, cases, workspace)
