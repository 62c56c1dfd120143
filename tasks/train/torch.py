"""PyTorch training: a network by its architecture's name, from scratch."""

from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import AfterValidator, Field

from gauntlet.core.arrays import NamedArrays
from gauntlet.core.report import Report
from gauntlet.core.signature import Signature
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.golden import record_golden
from gauntlet.datasets.splits import Splits
from gauntlet.frameworks.torch import network as torch_network
from gauntlet.frameworks.torch.architectures import NamedArchitecture, check_name
from gauntlet.frameworks.torch.module_outputs import record_module_outputs
from gauntlet.frameworks.torch.training_loop import TorchLoopConfig, TorchTrainingLoop
from gauntlet.frameworks.training import require_labelled
from tasks.train.facts import TrainFacts, image_fields, report_model, single_input, with_scores
from tasks.train.input_sizes import InputSizes, resized_samples, with_dynamic_size


class TorchTraining(TorchLoopConfig):
    """Train a PyTorch network from scratch."""

    kind: Literal["torch"] = "torch"
    packages: ClassVar[dict[str, str]] = {"torch": "torch", "torchvision": "torch"}
    architecture: Annotated[str, AfterValidator(check_name)] = Field(
        "resnet18",
        description="any torchvision classifier by name; resnet18 is its CIFAR variant (torchvision/resnet18 is not), "
        "small-cnn a network of three convolutions, small-vit a vision transformer of four layers",
    )
    input_sizes: InputSizes = ()
    output_name: str = Field("logits", min_length=1, description="name of the model's output")

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
            return {self.output_name: torch_network.predict(network, inputs[name])}

        example = data["test"].take(slice(0, torch_network.EXAMPLES))[name].astype(np.float32)
        sizes = resized_samples(data["test"], self.input_sizes, signature)
        module_outputs = record_module_outputs(network, [example[:1]])
        golden = record_golden(predict, data["test"], seed=self.seed, sizes=sizes, module_outputs=module_outputs)
        path = workspace.folder / "model.pt"
        torch_network.save_network(path, spec, network, {name: example})
        return report_model(facts, golden, predict, data, workspace, path, checks=(check,))
