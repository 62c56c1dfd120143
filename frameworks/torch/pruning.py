"""Pruning of a PyTorch network, in whichever way: prune, fine-tune, measure, record the outputs."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from frameworks.torch import network as source
from frameworks.torch.module_outputs import record_module_outputs
from frameworks.torch.network_size import channel_counts, compressed_bytes, size_of
from frameworks.torch.network_spec import ResizedNetwork
from frameworks.torch.training_loop import TorchLoopConfig, TorchTrainingLoop
from gauntlet.core.arrays import NamedArrays
from gauntlet.core.artifact import Artifact
from gauntlet.core.report import Check, Report
from gauntlet.core.signature import Signature
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.golden import Golden, GoldenCase, first_samples, predict_split
from gauntlet.datasets.splits import Split, Splits
from gauntlet.datasets.state_sequence import record_sequence
from gauntlet.frameworks.training import LoopConfig, store_golden_and_predictions
from tasks.prune import NetworkSize, PruneFacts, Pruning

if TYPE_CHECKING:
    import torch


class TorchPruning(Pruning):
    """What both ways to prune share; all other hyperparameters are those of the training."""

    everyday: ClassVar = {"epochs": 5}
    epochs: int = Field(3, ge=1, le=1000, description="epochs of fine-tuning")
    learning_rate: float = Field(1e-3, gt=0, description="of fine-tuning, at the start of the cosine schedule")
    packages: ClassVar[dict[str, str]] = {"torch": "torch"}

    @abstractmethod
    def pruned(self, network: "torch.nn.Module", inputs: Sequence["torch.Tensor"]) -> "torch.nn.Module":
        """Return a pruned network to fine-tune. `inputs`: its arguments for a few samples, each of shape (n, ...)."""

    @abstractmethod
    def checks(self, before: NetworkSize, after: NetworkSize) -> tuple[Check, ...]:
        """Return the checks that the network became as small as it should."""

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
        original, example = source.load_network(network, trust=True)
        inputs = [*example.values()]
        before = size_of(original, inputs)
        pruned = self.pruned(original, inputs)
        settings = training if isinstance(training, TorchLoopConfig) else TorchLoopConfig()
        settings = settings.replace(epochs=self.epochs, learning_rate=self.learning_rate)
        loop = TorchTrainingLoop(settings, pruned, data, signature, workspace)
        feasible = not any(check.blocks for check in self.checks(before, size_of(pruned, inputs)))
        trained = (loop.run("prune"),) if feasible else ()
        after = size_of(pruned, inputs)
        facts = PruneFacts(
            before=before,
            after=after,
            macs_share=after.macs / before.macs,
            channel_counts=channel_counts(original, pruned),
            gzip_bytes=compressed_bytes(pruned),
            **loop.history.facts(),
        )
        report: Report[PruneFacts] = Report(facts=facts, checks=(*self.checks(before, after), *trained))
        if report.failures:
            return report
        recipe = source.recipe_of(network)
        if facts.channel_counts and not isinstance(recipe, ResizedNetwork):
            recipe = ResizedNetwork.of(recipe, pruned)
        path = workspace.folder / "network.pt"
        source.save_network(path, recipe, pruned, {name: tensor.numpy() for name, tensor in example.items()})
        outputs = _store_outputs(pruned, golden, data, signature, workspace)
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
        sequence=record_sequence(predict, data["test"], signature),
    )
    return store_golden_and_predictions(own, predict, data, signature, workspace)
