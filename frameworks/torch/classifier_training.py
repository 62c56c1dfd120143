"""PyTorch training: a network by its architecture's name, from random weights or from pretrained ones."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

import numpy as np
from pydantic import AfterValidator, Field, model_validator

from frameworks.architecture_names import operators_of
from frameworks.epochs import require_weights_to_freeze
from frameworks.input_sizes import InputSizes, resized_samples, with_dynamic_size
from frameworks.normalization import normalization_checks
from frameworks.torch import network as torch_network
from frameworks.torch.architectures import NamedArchitecture, check_name
from frameworks.torch.freezing import Trainable, freeze
from frameworks.torch.initial_weights import expected_images, start_from, weights_file
from frameworks.torch.module_outputs import record_module_outputs
from frameworks.torch.training_loop import TorchLoopConfig, TorchTrainingLoop
from frameworks.training_data import SCORES, image_fields, single_input, with_scores
from gauntlet.core.arrays import NamedArrays
from gauntlet.core.report import Report
from gauntlet.core.signature import Signature
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.golden import record_golden
from gauntlet.datasets.splits import Splits
from gauntlet.frameworks.training import require_labelled
from gauntlet.onnx_model.recognition import Operators
from tasks.train.base import Training
from tasks.train.facts import InitialWeights, TrainFacts, report_model

if TYPE_CHECKING:
    import torch


class TorchTraining(Training, TorchLoopConfig):
    """Train a PyTorch network."""

    everyday: ClassVar = {"architecture": "mobilenet_v3_small", "weights": "DEFAULT"}
    kind: Literal["torch"] = "torch"
    packages: ClassVar[dict[str, str]] = {"torch": "torch", "torchvision": "torch"}
    from_scratch: ClassVar[bool] = True
    prunable: ClassVar[bool] = True
    architecture: Annotated[str, AfterValidator(check_name)] = Field(
        "resnet18",
        description="any torchvision classifier by name, `small-cnn`, `small-vit`, or `resnet18` for small images",
    )
    weights: str | None = Field(
        None,
        description="a state dict (.pt, .pth or .safetensors), or torchvision's name, such as DEFAULT; default: random",
    )
    weights_key: str | None = Field(None, description="key of the state dict in a larger checkpoint")
    trainable: Trainable = "all"
    input_sizes: InputSizes = ()

    @model_validator(mode="after")
    def _freezes_pretrained_weights(self) -> Self:
        require_weights_to_freeze(self.weights, self.trainable)
        return self

    def files(self) -> tuple[Path, ...]:
        """Return the user's files that are read: that of the weights."""
        file = weights_file(self.weights)
        return (file,) if file else ()

    @property
    def operators(self) -> Operators:
        """What the architecture's name tells."""
        return operators_of(self.architecture)

    @property
    def hyperparameters(self) -> TorchLoopConfig:
        """Its own."""
        return self.loop()

    def fit(self, splits: Splits, signature: Signature, workspace: Workspace) -> Report[TrainFacts]:
        """Train, keep the best epoch, and record its golden outputs. See `tasks.train.train`."""
        import torch

        torch.manual_seed(self.seed)
        data, name = require_labelled(splits, "train", "validation", "test"), single_input(signature)
        what, fix = f"train.architecture: {self.architecture}", "bring your own network (train.kind: torch-model)"
        image = image_fields(signature, what, fix)
        spec = NamedArchitecture(architecture=self.architecture, layout=signature.layout, **image)
        network = spec.build()
        for size in ((spec.height, spec.width), *self.input_sizes):
            spec.check_image_size(network, *size)
        initial, frozen = self._start(spec.inner(network))
        expected = expected_images(spec.inner(network), self.weights, self.architecture)
        signature = with_scores(signature)
        signature = with_dynamic_size(signature) if self.input_sizes else signature
        loop = TorchTrainingLoop(self, network, data, signature, workspace, frozen)
        checks = (loop.run(), *normalization_checks(signature.preprocessing, expected))
        facts = TrainFacts(
            framework=f"torch {torch.__version__}",
            architecture=self.architecture,
            parameters=sum(p.numel() for p in network.parameters()),
            signature=signature,
            initial_weights=initial,
            **loop.history.facts(),
        )
        if not checks[0].passed:
            return Report(facts=facts, checks=checks)

        def predict(inputs: NamedArrays) -> NamedArrays:
            return {SCORES: torch_network.predict(network, inputs[name])}

        example = data["test"].take(slice(0, torch_network.EXAMPLES))[name].astype(np.float32)
        sizes = resized_samples(data["test"], self.input_sizes, signature)
        module_outputs = record_module_outputs(network, [example[:1]])
        golden = record_golden(predict, data["test"], sizes=sizes, module_outputs=module_outputs)
        path = workspace.folder / "model.pt"
        torch_network.save_network(path, spec, network, {name: example})
        return report_model(facts, golden, predict, data, workspace, path, checks=checks)

    def _start(self, network: "torch.nn.Module") -> tuple[InitialWeights | None, Sequence["torch.nn.Module"]]:
        """Load the weights to start from, and freeze layers; return what was loaded, and the frozen layers."""
        if self.weights is None:
            return None, ()
        replaced = start_from(network, self.weights, self.architecture, self.weights_key)
        frozen = freeze(network, self.trainable)
        trained = sum(p.numel() for p in network.parameters() if p.requires_grad)
        source = file.name if (file := weights_file(self.weights)) else self.weights
        return InitialWeights(source=source, replaced=replaced, trained_parameters=trained), frozen
