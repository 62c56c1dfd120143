"""Pruning: a network of fewer weights, which learns again what the cut cost, and then walks the line by itself."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from gauntlet.core.arrays import NamedArrays
from gauntlet.core.artifact import Artifact
from gauntlet.core.errors import StageError
from gauntlet.core.frozen import Frozen
from gauntlet.core.report import Report
from gauntlet.core.signature import Signature
from gauntlet.core.workspace import Workspace
from gauntlet.datasets import read_split
from gauntlet.datasets.golden import Golden, GoldenCase, first_samples, predict_split
from gauntlet.datasets.splits import Split
from gauntlet.frameworks.torch import network as source
from gauntlet.frameworks.torch.module_outputs import record_module_outputs
from gauntlet.frameworks.torch.network_spec import ResizedNetwork
from gauntlet.frameworks.torch.training_loop import TorchTrainingLoop
from gauntlet.frameworks.training import EpochMetrics, require_labelled, store_golden_and_predictions
from tasks.prune.network_size import NetworkSize, channel_counts, compressed_bytes
from tasks.prune.structured import Structured
from tasks.prune.unstructured import Unstructured

if TYPE_CHECKING:
    import torch

PruneConfig = Annotated[Structured | Unstructured, Field(discriminator="kind")]


class PruneFacts(Frozen):
    """What was cut, and how the network learned again."""

    before: NetworkSize
    after: NetworkSize
    macs_share: float = Field(description="multiply-accumulate operations left, of those before")
    channel_counts: dict[str, tuple[int, int]] = Field(
        description="output channels before and after, of the layers that lost"
    )
    gzip_bytes: int = Field(description="all tensors of the pruned network, one after the other, compressed by DEFLATE")
    best_epoch: int = Field(description="of fine-tuning, by the loss on the validation images; 0 for none")
    stopped_early: bool
    history: tuple[EpochMetrics, ...]


def prune(
    config: PruneConfig,
    workspace: Workspace,
    *,
    network: Artifact,
    signature: Signature,
    golden: Artifact,
    splits: Mapping[str, Artifact],
) -> Report[PruneFacts]:
    """Cut a PyTorch network and fine-tune what is left. The test images are asked at the end, and decide nothing.

    Args:
        config: what to cut, and how to learn again.
        workspace: where to write.
        network: the trained network's file.
        signature: its contract; the pruned network keeps it.
        golden: its answers. The pruned network is asked the same.
        splits: the data; `train`, `validation` and `test`, with labels, are used.

    Returns:
        The artifacts `network` (a file like the one that came in), `golden` and `predictions`. There are none where the
        network cannot be cut that far.

    Raises:
        StageError: when there are no labels to learn from, or the network cannot be cut without breaking it.
    """
    data = require_labelled(
        {name: read_split(workspace.path(artifact)) for name, artifact in splits.items()}, "train", "validation", "test"
    )
    whole, example = source.load_network(workspace.path(network))
    names, inputs = [spec.name for spec in signature.outputs], [*example.values()]
    if signature.primary_output not in names:
        raise StageError(
            "pruning needs an output that names the class, to learn again; name one with train.primary_output"
        )
    before = NetworkSize.from_network(whole, inputs)
    with config.pruned(whole, inputs) as cut:
        loop = TorchTrainingLoop(config, cut, data, signature, workspace)
        possible = not any(check.blocks for check in config.checks(before, NetworkSize.from_network(cut, inputs)))
        learned = (loop.run("prune"),) if possible else ()
    after = NetworkSize.from_network(cut, inputs)
    facts = PruneFacts(
        before=before,
        after=after,
        macs_share=after.macs / before.macs,
        channel_counts=channel_counts(whole, cut),
        gzip_bytes=compressed_bytes(cut),
        **loop.history.facts(),
    )
    report: Report[PruneFacts] = Report(stage="prune", facts=facts, checks=(*config.checks(before, after), *learned))
    if report.failures:
        return report
    artifacts = _kept(cut, Golden.load(workspace.path(golden)), data, signature, workspace)
    path = workspace.folder / "network.pt"
    recipe = source.recipe_of(workspace.path(network))
    if facts.channel_counts and not isinstance(recipe, ResizedNetwork):
        recipe = ResizedNetwork.of(recipe, cut)
    source.save_network(path, recipe, cut, {name: tensor.numpy() for name, tensor in example.items()})
    return report.replace(artifacts={"network": workspace.store_file(path), **artifacts})


def _kept(
    network: "torch.nn.Module", golden: Golden, data: Mapping[str, Split], signature: Signature, workspace: Workspace
) -> dict[str, Artifact]:
    """Ask the network what the whole one was asked, and save its answers."""

    def predict(inputs: NamedArrays) -> NamedArrays:
        found = source.run_network(network, source.ordered_inputs(inputs, signature))
        return {spec.name: array for spec, array in zip(signature.outputs, found, strict=True)}

    first = source.ordered_inputs(first_samples(golden.real.inputs, 1), signature)
    own = Golden(
        cases={title: GoldenCase(case.inputs, predict(case.inputs)) for title, case in golden.cases.items()},
        test_outputs=predict_split(predict, data["test"]),
        labels=golden.labels,
        module_outputs=record_module_outputs(network, first),
    )
    return store_golden_and_predictions(own, predict, data, signature, workspace)
