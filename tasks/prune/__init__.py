"""Pruning: a smaller network is fine-tuned and passes every gate as its own candidate."""

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
    """How much was pruned, and how fine-tuning went."""

    before: NetworkSize
    after: NetworkSize
    macs_share: float = Field(description="share of the multiply-accumulate operations that is left")
    channel_counts: dict[str, tuple[int, int]] = Field(description="output channels of pruned layers, before and after")
    gzip_bytes: int = Field(description="all tensors of the pruned network, concatenated and compressed by DEFLATE")
    best_epoch: int = Field(description="of fine-tuning, by validation loss; 0 without fine-tuning")
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
    """Prune a PyTorch network and fine-tune it. The test images are used only for predictions at the end.

    The pruned network keeps the signature and is evaluated on the cases of `golden`. The splits `train`, `validation`
    and `test` need labels. The artifacts are `network` (a file like the input), `golden` and `predictions`; none when a
    check fails. Raises StageError when there are no labels, or the network cannot be pruned without breaking it.
    """
    loaded = {name: read_split(workspace.path(artifact)) for name, artifact in splits.items()}
    data = require_labelled(loaded, "train", "validation", "test")
    if signature.primary_output not in [spec.name for spec in signature.outputs]:
        raise StageError("fine-tuning needs the output with the class scores; name it in train.primary_output")
    original, example = source.load_network(workspace.path(network), trust=True)
    inputs = [*example.values()]
    before = NetworkSize.from_network(original, inputs)
    pruned = config.pruned(original, inputs)
    loop = TorchTrainingLoop(config, pruned, data, signature, workspace)
    feasible = not any(check.blocks for check in config.checks(before, NetworkSize.from_network(pruned, inputs)))
    trained = (loop.run("prune"),) if feasible else ()
    after = NetworkSize.from_network(pruned, inputs)
    facts = PruneFacts(
        before=before,
        after=after,
        macs_share=after.macs / before.macs,
        channel_counts=channel_counts(original, pruned),
        gzip_bytes=compressed_bytes(pruned),
        **loop.history.facts(),
    )
    report: Report[PruneFacts] = Report(stage="prune", facts=facts, checks=(*config.checks(before, after), *trained))
    if report.failures:
        return report
    recipe = source.recipe_of(workspace.path(network))
    if facts.channel_counts and not isinstance(recipe, ResizedNetwork):
        recipe = ResizedNetwork.of(recipe, pruned)
    path = workspace.folder / "network.pt"
    source.save_network(path, recipe, pruned, {name: tensor.numpy() for name, tensor in example.items()})
    outputs = _store_outputs(pruned, Golden.load(workspace.path(golden)), data, signature, workspace)
    return report.replace(artifacts={"network": workspace.store_file(path), **outputs})


def _store_outputs(
    network: "torch.nn.Module", golden: Golden, data: Mapping[str, Split], signature: Signature, workspace: Workspace
) -> dict[str, Artifact]:
    """Store the network's outputs for the golden cases and the test split, and its predictions."""

    def predict(inputs: NamedArrays) -> NamedArrays:
        outputs = source.run_network(network, source.ordered_inputs(inputs, signature))
        return {spec.name: array for spec, array in zip(signature.outputs, outputs, strict=True)}

    first = source.ordered_inputs(first_samples(golden.real.inputs, 1), signature)
    own = Golden(
        cases={title: GoldenCase(case.inputs, predict(case.inputs)) for title, case in golden.cases.items()},
        test_outputs=predict_split(predict, data["test"]),
        labels=golden.labels,
        module_outputs=record_module_outputs(network, first),
    )
    return store_golden_and_predictions(own, predict, data, signature, workspace)
