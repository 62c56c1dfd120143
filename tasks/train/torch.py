"""PyTorch training: a network by its architecture's name, from scratch."""

from collections.abc import Mapping
from typing import Annotated, Literal

import numpy as np
from pydantic import AfterValidator, Field

from gauntlet.core.arrays import NamedArrays
from gauntlet.core.report import Report
from gauntlet.core.signature import Signature
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.golden import record_golden
from gauntlet.datasets.splits import Split
from gauntlet.frameworks.torch import network as source
from gauntlet.frameworks.torch.architectures import NamedArchitecture, check_name
from gauntlet.frameworks.torch.module_outputs import record_module_outputs
from gauntlet.frameworks.torch.training_loop import TorchLoopConfig, TorchTrainingLoop
from gauntlet.frameworks.training import require_labelled, store_golden_and_predictions
from tasks.train.facts import TrainFacts, picture_shape, single_input, with_scores
from tasks.train.input_sizes import DESCRIPTION, InputSizes, resized_samples, with_dynamic_size


class TorchTraining(TorchLoopConfig):
    """Train a PyTorch network from scratch."""

    kind: Literal["torch"] = "torch"
    architecture: Annotated[str, AfterValidator(check_name)] = Field(
        "resnet18",
        description="any torchvision classifier by name; resnet18 is its CIFAR form (torchvision/resnet18 is not), "
        "small-cnn a network of three convolutions",
    )
    input_sizes: InputSizes = Field((), description=DESCRIPTION)
    output_name: str = Field("logits", min_length=1, description="name of the model's output")

    def fit(self, splits: Mapping[str, Split], signature: Signature, workspace: Workspace) -> Report[TrainFacts]:
        """Train, keep the best epoch, and save the model with its answers. See `tasks.train.train`."""
        import torch

        torch.manual_seed(self.seed)
        data = require_labelled(splits, "train", "validation", "test")
        name = single_input(signature)
        recipe = self._recipe(signature)
        network = recipe.build()
        for size in ((recipe.height, recipe.width), *self.input_sizes):
            recipe.check_image_size(network, *size)
        signature = with_scores(signature, self.output_name)
        signature = with_dynamic_size(signature) if self.input_sizes else signature
        loop = TorchTrainingLoop(self, network, data, signature, workspace)
        check = loop.run()
        facts = TrainFacts(
            framework=f"torch {torch.__version__}",
            architecture=self.architecture,
            parameters=sum(p.numel() for p in network.parameters()),
            signature=signature,
            **loop.history.facts(),
        )
        if not check.passed:
            return Report(stage="train", facts=facts, checks=(check,))

        def predict(inputs: NamedArrays) -> NamedArrays:
            return {self.output_name: source.predict(network, inputs[name])}

        example: NamedArrays = {name: data["test"].take(slice(0, source.EXAMPLES))[name].astype(np.float32)}
        golden = record_golden(
            predict,
            data["test"],
            seed=self.seed,
            sizes=resized_samples(data["test"], self.input_sizes, signature),
            trace=record_module_outputs(network, [example[name][:1]]),
        )
        artifacts = store_golden_and_predictions(golden, predict, data, signature, workspace)
        path = workspace.folder / "model.pt"
        source.save_network(path, recipe, network, example)
        artifacts["model"] = workspace.store_file(path)
        return Report(stage="train", facts=facts, checks=(check,), artifacts=artifacts)

    def _recipe(self, signature: Signature) -> NamedArchitecture:
        what, remedy = (
            f"train.architecture: {self.architecture}",
            "Bring a network of your own (train.kind: torch-model)",
        )
        channels, height, width = picture_shape(signature, what, remedy)
        return NamedArchitecture(
            architecture=self.architecture,
            channels=channels,
            height=height,
            width=width,
            classes=len(signature.labels),
            layout=signature.layout,
        )
