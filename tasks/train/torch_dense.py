"""PyTorch training, from scratch, of networks that predict at every place of an image."""

from abc import abstractmethod
from typing import ClassVar

import numpy as np

from gauntlet.core.arrays import NamedArrays
from gauntlet.core.errors import StageError
from gauntlet.core.report import Report
from gauntlet.core.signature import Signature, Task, TensorSpec
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.golden import record_golden
from gauntlet.datasets.splits import Splits
from gauntlet.frameworks.torch import network as torch_network
from gauntlet.frameworks.torch.averaged_loop import AveragedLoop, AveragedLoopConfig
from gauntlet.frameworks.torch.detector import DetectorSpec
from gauntlet.frameworks.torch.module_outputs import record_module_outputs
from gauntlet.frameworks.torch.segmenter import SegmenterSpec
from gauntlet.frameworks.training import require_labelled
from tasks.train.facts import TrainFacts, image_fields, report_model, single_input


class DenseTraining(AveragedLoopConfig):
    """What the trainings of a detector and of a segmenter share."""

    packages: ClassVar[dict[str, str]] = {"torch": "torch", "torchvision": "torch"}
    kind: str
    task: ClassVar[Task]
    learns: ClassVar[str]
    """The labels, in a word."""
    data_kinds: ClassVar[str]
    architecture: ClassVar[str]
    size_multiple: ClassVar[int]
    """Of the height and width of an image."""
    spec: ClassVar[type[DetectorSpec | SegmenterSpec]]
    loop: ClassVar[type[AveragedLoop]]

    @abstractmethod
    def with_outputs(self, signature: Signature, height: int, width: int) -> Signature:
        """Return the signature with the network's outputs for images of this size."""

    def fit(self, splits: Splits, signature: Signature, workspace: Workspace) -> Report[TrainFacts]:
        """Train, keep the best epoch, and record its golden outputs. See `tasks.train.train`."""
        import torch

        torch.manual_seed(self.seed)
        data, name = require_labelled(splits, "train", "validation", "test"), single_input(signature)
        signature = self._complete(signature)
        image = image_fields(signature, f"train.kind: {self.kind}", "use a data.kind with images")
        spec = self.spec(channels=image["channels"], classes=image["classes"])
        network = spec.build()
        loop = self.loop(self, network, data, signature, workspace)
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
        network = network.to(memory_format=torch.contiguous_format)
        outputs = [spec.name for spec in signature.outputs]

        def predict(inputs: NamedArrays) -> NamedArrays:
            return dict(zip(outputs, torch_network.run_network(network, [inputs[name]]), strict=True))

        example = data["test"].take(slice(0, torch_network.EXAMPLES))[name].astype(np.float32)
        module_outputs = record_module_outputs(network, [example[:1]])
        golden = record_golden(predict, data["test"], seed=self.seed, module_outputs=module_outputs)
        path = workspace.folder / "model.pt"
        torch_network.save_network(path, spec, network, {name: example})
        return report_model(facts, golden, predict, data, workspace, path, checks=(check,))

    def _complete(self, signature: Signature) -> Signature:
        """Return the signature with the network's outputs; raise StageError where the data does not fit it."""
        what = f"train.kind: {self.kind}"
        if signature.task != self.task:
            raise StageError(
                f"{what} learns {self.learns}; the data's labels are for {signature.task}. "
                f"Fix: use data.kind {self.data_kinds}, or another train.kind"
            )
        if signature.layout != "NCHW":
            raise StageError(f"{what} takes NCHW images; data.layout is {signature.layout}")
        (height, width), multiple = signature.inputs[0].shape[-2:], self.size_multiple
        if isinstance(height, str) or isinstance(width, str) or height % multiple or width % multiple:
            raise StageError(
                f"{what} takes images whose height and width are multiples of {multiple}; the data has "
                f"{height}x{width} pixels. Fix: change data.image_size"
            )
        inputs: tuple[TensorSpec, ...] = tuple(spec.replace(dtype="float32") for spec in signature.inputs)
        return self.with_outputs(signature.replace(inputs=inputs), height, width)
