"""Pruning of a PyTorch network: prune, fine-tune, measure, record the outputs; and the way that removes channels."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from frameworks.torch import network as source
from frameworks.torch.channel_pruning import prune_to_budget
from frameworks.torch.module_outputs import record_module_outputs
from frameworks.torch.network_size import channel_counts, compressed_bytes, prunable_layers, size_of
from frameworks.torch.network_spec import ResizedNetwork
from frameworks.torch.training_loop import TorchLoopConfig, TorchTrainingLoop
from gauntlet.core.arrays import NamedArrays
from gauntlet.core.artifact import Artifact
from gauntlet.core.errors import StageError
from gauntlet.core.frozen import Percent
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
        long_sequence=record_sequence(predict, data["test"], signature, long=True),
    )
    return store_golden_and_predictions(own, predict, data, signature, workspace)


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
