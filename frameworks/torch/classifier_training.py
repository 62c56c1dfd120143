"""PyTorch training: a network by its architecture's name, from random weights or from pretrained ones."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

import numpy as np
from pydantic import AfterValidator, Field, model_validator

from frameworks.architecture_names import operators_of
from frameworks.epochs import require_weights_to_freeze
from frameworks.input_sizes import InputSizes, resized_samples, with_dynamic_size
from frameworks.normalization import normalization_checks
from frameworks.torch import network as torch_network
from frameworks.torch.architectures import OURS, PREFIX, NamedArchitecture, check_name
from frameworks.torch.freezing import Trainable, freeze
from frameworks.torch.module_outputs import record_module_outputs
from frameworks.torch.training_loop import TorchLoopConfig, TorchTrainingLoop
from frameworks.torch.weights import put_weights, read_weights, without_other_head
from frameworks.training_data import SCORES, image_fields, single_input, with_scores
from gauntlet.core.arrays import NamedArrays
from gauntlet.core.errors import StageError, one_line
from gauntlet.core.report import Report
from gauntlet.core.signature import Signature
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.golden import record_golden
from gauntlet.datasets.splits import Splits
from gauntlet.frameworks.training import require_labelled
from gauntlet.frameworks.trial_run import ExpectedImages
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


SUFFIXES = (".pt", ".pth", ".safetensors", ".ckpt")
"""Of files that may hold weights alone; a TorchScript program may have the first two, too."""


def weights_file(weights: str | None) -> Path | None:
    """Return the file that `weights` names; None for a name of torchvision's."""
    return Path(weights) if weights and Path(weights).suffix in SUFFIXES else None


def start_from(network: "torch.nn.Module", weights: str, architecture: str, key: str | None) -> tuple[str, ...]:
    """Load the weights of a file, or published ones of the architecture, into a network for images in NCHW.

    Return the names of the tensors of a head of another number of classes, which were left as they are. Raise
    StageError if the weights cannot be read, or do not fit.
    """
    file = weights_file(weights)
    state = _published(weights, architecture) if file is None else read_weights(file, key)
    state, replaced = without_other_head(network, state)
    put_weights(network, state, file or weights)
    return replaced


def expected_images(network: "torch.nn.Module", weights: str | None, architecture: str) -> ExpectedImages | None:
    """Return how torchvision prepares images for published weights; None for weights of a file.

    Its GoogLeNet and Inception take images as of ImageNet only where they are built with `transform_input`.
    """
    if weights is None or weights_file(weights) is not None:
        return None
    member = _member(weights, architecture)
    how, inside = member.transforms(), getattr(network, "transform_input", True)
    mean, std = (tuple(how.mean), tuple(how.std)) if inside else ((0.5,) * 3, (0.5,) * 3)
    return ExpectedImages(f"as {member}.transforms() does", mean, std)


def _published(weights: str, architecture: str) -> "dict[str, torch.Tensor]":
    """Return torchvision's weights, downloaded once."""
    member = _member(weights, architecture)
    try:
        state: dict[str, torch.Tensor] = member.get_state_dict(
            progress=False, check_hash=True, map_location="cpu", weights_only=True
        )
    except (OSError, RuntimeError) as error:  # no network, or the download is damaged
        raise StageError(
            f"train.weights: {member} cannot be downloaded ({one_line(error)}). Fix: download {member.url} elsewhere, "
            f"and name the file: train.weights: {Path(member.url).name}"
        ) from error
    return state


def _member(weights: str, architecture: str) -> Any:
    """Return torchvision's description of published weights."""
    import torchvision

    name = architecture.removeprefix(PREFIX)
    if architecture in OURS:
        near = f" (torchvision's own is {PREFIX}{architecture})" if architecture == "resnet18" else ""
        raise StageError(
            f"train.weights: {weights}: there are no published weights for {architecture}{near}. Fix: name a file "
            f"({', '.join(SUFFIXES)}), or use an architecture of torchvision"
        )
    published = torchvision.models.get_model_weights(name)
    chosen = weights.removeprefix(f"{published.__name__}.")
    if chosen not in published.__members__:
        raise StageError(
            f"train.weights: {weights}: neither a file ({', '.join(SUFFIXES)}) nor weights of {name}; "
            f"available: {', '.join(published.__members__)}"
        )
    return published[chosen]
