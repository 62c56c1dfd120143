"""PyTorch training: a network by its architecture's name, from scratch."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import AfterValidator, Field

from tasks.data.dataset import Arrays, Split
from tasks.data.golden import ask
from tasks.errors import StageError
from tasks.report import Report
from tasks.signature import Signature, TensorSpec
from tasks.sources import torch as source
from tasks.sources.learning import keep_answers, labelled
from tasks.sources.torch.architectures import Known, check_name
from tasks.sources.torch.loop import Loop, LoopConfig
from tasks.sources.torch.trace import trace
from tasks.train.facts import TrainFacts, only_input
from tasks.train.sizes import DESCRIPTION, Sizes, at_other_sizes, with_dynamic_size
from tasks.workspace import Workspace


class TorchTraining(LoopConfig):
    """Train a PyTorch network from scratch."""

    kind: Literal["torch"] = "torch"
    architecture: Annotated[str, AfterValidator(check_name)] = Field(
        "resnet18",
        description="any torchvision classifier by name; resnet18 is its CIFAR form (torchvision/resnet18 is not), "
        "small-cnn a network of three convolutions",
    )
    sizes: Sizes = Field((), description=DESCRIPTION)
    output_name: str = Field("logits", min_length=1, description="name of the model's output")

    def files(self) -> tuple[Path, ...]:
        """Return the user's files that are read: none."""
        return ()

    def fit(self, splits: Mapping[str, Split], signature: Signature, out: Workspace) -> Report[TrainFacts]:
        """Train, keep the best epoch, and save the model with its answers. See `tasks.train.train`."""
        import torch

        torch.manual_seed(self.seed)
        data = labelled(splits, "train", "validation", "test")
        name = only_input(signature)
        recipe = self._recipe(signature)
        network = recipe.build()
        for size in ((recipe.height, recipe.width), *self.sizes):
            recipe.try_out(network, *size)
        signature = self._signed(signature)
        loop = Loop(self, network, data, signature, out)
        check = loop.run("train")
        facts = TrainFacts(
            framework=f"torch {torch.__version__}",
            architecture=self.architecture,
            parameters=sum(p.numel() for p in network.parameters()),
            best_epoch=loop.best_epoch,
            stopped_early=loop.stopped_early,
            history=tuple(loop.history),
            signature=signature,
        )
        if not check.passed:
            return Report(stage="train", facts=facts, checks=(check,))

        def predict(inputs: Arrays) -> Arrays:
            return {self.output_name: source.predict(network, inputs[name])}

        example: Arrays = {name: data["test"].take(slice(0, source.EXAMPLES))[name].astype(np.float32)}
        golden = ask(
            predict,
            data["test"],
            seed=self.seed,
            sizes=at_other_sizes(data["test"], self.sizes, signature),
            trace=trace(network, [example[name][:1]]),
        )
        artifacts = keep_answers(golden, predict, data, signature, out)
        path = out.folder / "model.pt"
        source.save(path, recipe, network, example)
        artifacts["model"] = out.keep(path)
        return Report(stage="train", facts=facts, checks=(check,), artifacts=artifacts)

    def _recipe(self, signature: Signature) -> Known:
        shape = signature.inputs[0].shape[1:]
        if len(shape) != 3 or signature.layout == "none":
            raise StageError(
                f"train.architecture: {self.architecture} takes pictures; the data has samples of shape {shape} and "
                f"layout {signature.layout}. Bring a network of your own (train.kind: torch-model)"
            )
        numbers = [int(n) for n in shape]
        channels, height, width = numbers if signature.layout == "NCHW" else (numbers[2], *numbers[:2])
        return Known(
            architecture=self.architecture,
            channels=channels,
            height=height,
            width=width,
            classes=len(signature.labels),
            layout=signature.layout,
        )

    def _signed(self, signature: Signature) -> Signature:
        """Return the signature of the trained model: it takes floats, whatever type the data has."""
        scores = TensorSpec(name=self.output_name, dtype="float32", shape=("batch", len(signature.labels)))
        inputs = tuple(spec.replace(dtype="float32") for spec in signature.inputs)
        signature = signature.replace(inputs=inputs, outputs=(scores,), answer=self.output_name)
        return with_dynamic_size(signature) if self.sizes else signature
