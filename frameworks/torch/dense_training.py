"""PyTorch training, from scratch, of networks that predict at every place of an image."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from pydantic import Field

from frameworks.torch import network as torch_network
from frameworks.torch.averaged_loop import AveragedLoop, AveragedLoopConfig
from frameworks.torch.detection_loss import detection_loss
from frameworks.torch.detector import STRIDE, DetectorSpec
from frameworks.torch.module_outputs import record_module_outputs
from frameworks.torch.segmentation_loss import segmentation_loss
from frameworks.torch.segmenter import SIZE_MULTIPLE, SegmenterSpec
from gauntlet.core.arrays import NamedArrays
from gauntlet.core.errors import StageError
from gauntlet.core.report import Report
from gauntlet.core.signature import BoxDecoding, Signature, Task, TensorSpec
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.golden import record_golden
from gauntlet.datasets.splits import Splits
from gauntlet.frameworks.training import require_labelled
from gauntlet.onnx_model.attention import Operators
from tasks.train.base import Training
from tasks.train.facts import TrainFacts, image_fields, report_model, single_input

if TYPE_CHECKING:
    import torch

DECODING = BoxDecoding(kind="fcos", scores="scores", boxes="distances")
MASK_SCORES = "scores"


@dataclass(frozen=True)
class DenseTask:
    """A network that predicts at every place of an image; its images' sides are multiples of `size_multiple` pixels.

    `with_outputs` takes a signature, and the height and width of an image; it returns the signature with the outputs.
    """

    architecture: str
    size_multiple: int
    spec: type[DetectorSpec | SegmenterSpec]
    loss: "Callable[..., torch.Tensor]"
    with_outputs: Callable[[Signature, int, int], Signature]


def _with_boxes(signature: Signature, height: int, width: int) -> Signature:
    """Return the signature with scores and distances for each cell."""
    cells = (height // STRIDE, width // STRIDE)
    channels = {DECODING.scores: len(signature.labels), str(DECODING.boxes): 4}
    specs = (TensorSpec(name=n, dtype="float32", shape=("batch", c, *cells)) for n, c in channels.items())
    return signature.replace(outputs=tuple(specs), primary_output=DECODING.scores, decode=DECODING)


def _with_masks(signature: Signature, height: int, width: int) -> Signature:
    """Return the signature with a score for each class and pixel."""
    shape = ("batch", len(signature.labels), height, width)
    output = TensorSpec(name=MASK_SCORES, dtype="float32", shape=shape)
    return signature.replace(outputs=(output,), primary_output=MASK_SCORES)


TASKS: dict[Task, DenseTask] = {
    "detection": DenseTask("fcos-small", 2 * STRIDE, DetectorSpec, detection_loss, _with_boxes),
    "segmentation": DenseTask("unet-small", SIZE_MULTIPLE, SegmenterSpec, segmentation_loss, _with_masks),
}


class DenseTraining(Training, AveragedLoopConfig):
    """Train a small network on the data's boxes or masks, from scratch.

    Boxes train an anchor-free one-stage detector (FCOS, 0.3 million parameters), masks a U-Net (0.4 million).
    """

    kind: Literal["torch-dense"] = "torch-dense"
    epochs: int = Field(8, ge=1, le=1000)
    packages: ClassVar[dict[str, str]] = {"torch": "torch", "torchvision": "torch"}
    from_scratch: ClassVar[bool] = True

    @property
    def operators(self) -> Operators:
        """Both networks are convolutional."""
        return "convolutions"

    def fit(self, splits: Splits, signature: Signature, workspace: Workspace) -> Report[TrainFacts]:
        """Train, keep the best epoch, and record its golden outputs. See `tasks.train.train`."""
        import torch

        torch.manual_seed(self.seed)
        data, name = require_labelled(splits, "train", "validation", "test"), single_input(signature)
        task, signature = self._complete(signature)
        image = image_fields(signature, f"train.kind: {self.kind}", "use a data.kind with images")
        spec = task.spec(channels=image["channels"], classes=image["classes"])
        network = spec.build()
        loop = AveragedLoop(self, network, task.loss, data, signature, workspace)
        check = loop.run()
        facts = TrainFacts(
            framework=f"torch {torch.__version__}",
            architecture=task.architecture,
            parameters=sum(p.numel() for p in network.parameters()),
            signature=signature,
            **loop.history.facts(),
        )
        if not check.passed:
            return Report(facts=facts, checks=(check,))
        network = network.to(memory_format=torch.contiguous_format)
        outputs = [spec.name for spec in signature.outputs]

        def predict(inputs: NamedArrays) -> NamedArrays:
            return dict(zip(outputs, torch_network.run_network(network, [inputs[name]]), strict=True))

        example = data["test"].take(slice(0, torch_network.EXAMPLES))[name].astype(np.float32)
        module_outputs = record_module_outputs(network, [example[:1]])
        golden = record_golden(predict, data["test"], module_outputs=module_outputs)
        path = workspace.folder / "model.pt"
        torch_network.save_network(path, spec, network, {name: example})
        return report_model(facts, golden, predict, data, workspace, path, checks=(check,))

    def _complete(self, signature: Signature) -> tuple[DenseTask, Signature]:
        """Return the task of the data's labels, and the signature with its outputs; StageError where none fits."""
        what, task = f"train.kind: {self.kind}", TASKS.get(signature.task)
        if task is None:
            raise StageError(
                f"{what} learns boxes or masks; the data's labels are for {signature.task}. Fix: use data.kind "
                "digit-scenes, image-folder with data.annotations or arrays with data.task: segmentation, or another "
                "train.kind"
            )
        if signature.layout != "NCHW":
            raise StageError(f"{what} takes NCHW images; data.layout is {signature.layout}")
        (height, width), multiple = signature.inputs[0].shape[-2:], task.size_multiple
        if isinstance(height, str) or isinstance(width, str) or height % multiple or width % multiple:
            raise StageError(
                f"{what} takes images whose height and width are multiples of {multiple}; the data has "
                f"{height}x{width} pixels. Fix: change data.image_size"
            )
        inputs: tuple[TensorSpec, ...] = tuple(spec.replace(dtype="float32") for spec in signature.inputs)
        return task, task.with_outputs(signature.replace(inputs=inputs), height, width)
