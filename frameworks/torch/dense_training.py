"""PyTorch training, from scratch, of networks that predict at every place of an image."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, field_validator

from frameworks.augmentation import Augmentation
from frameworks.torch import network as torch_network
from frameworks.torch.detector import STRIDE, DetectorSpec, detection_loss
from frameworks.torch.module_outputs import record_module_outputs
from frameworks.torch.network import run_network, tensor
from frameworks.torch.segmenter import SIZE_MULTIPLE, SegmenterSpec, segmentation_loss
from frameworks.torch.training_loop import TorchLoop, WarmupConfig
from frameworks.training_data import image_fields, single_input
from gauntlet.core.arrays import NamedArrays
from gauntlet.core.errors import StageError
from gauntlet.core.report import Report
from gauntlet.core.signature import BoxDecoding, Signature, Task, TensorSpec
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.golden import record_golden
from gauntlet.datasets.splits import Split, Splits
from gauntlet.frameworks.training import require_labelled
from gauntlet.onnx_model.recognition import Operators
from gauntlet.problems import problem_of
from tasks.train.base import Training
from tasks.train.facts import TrainFacts, report_model

if TYPE_CHECKING:
    import torch


AVERAGE_DECAY = 0.995
"""Of the moving average of the weights, for each step (Tarvainen and Valpola, Mean Teachers, NeurIPS 2017)."""


class AveragedLoopConfig(WarmupConfig):
    """Hyperparameters of a training whose steps are many and small."""

    patience: int = Field(1000, ge=1, description="stop after this many epochs without a lower validation loss")
    batch_size: int = Field(16, ge=2, description="images per step")
    learning_rate: float = Field(3e-3, gt=0, description="of AdamW, after the warmup and before the cosine schedule")
    warmup: float = Field(0.05, ge=0, lt=1, description="share of all steps in which the learning rate rises")
    augment: Augmentation | None = Field(None, description="random changes of the images' colors: {recolor: true}")

    @field_validator("augment")
    @classmethod
    def _truth_stays(cls, augment: Augmentation | None) -> Augmentation | None:
        if augment and (augment.crop_padding or augment.flip):
            raise ValueError("boxes and masks would not move with their images; remove crop_padding and flip")
        return augment


class AveragedLoop(TorchLoop):
    """Trains with a moving average of the weights, on images in the memory format that convolutions prefer.

    `loss` takes the network's outputs and the labels, shape (n, ...).
    """

    def __init__(
        self,
        config: AveragedLoopConfig,
        network: "torch.nn.Module",
        loss: "Callable[..., torch.Tensor]",
        data: Splits,
        signature: Signature,
        workspace: Workspace,
    ) -> None:
        import torch
        from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

        super().__init__(config, network.to(memory_format=torch.channels_last), data, workspace)
        self.signature, self.augment, self.loss = signature, config.augment, loss
        averaging = get_ema_multi_avg_fn(AVERAGE_DECAY)  # type: ignore[no-untyped-call]
        self.average = AveragedModel(network, multi_avg_fn=averaging, use_buffers=True)

    @property
    def validated(self) -> "torch.nn.Module":
        """The average of the network's weights."""
        return self.average.module

    def _images(self, split: Split, chosen: npt.NDArray[np.int64], rng: np.random.Generator) -> "torch.Tensor":
        """Return training images, augmented, on the device."""
        import torch

        images = split.take(chosen)[self.signature.inputs[0].name]
        if self.augment is not None:
            images = self.augment.recolored(images, rng, self.signature.layout, self.signature.preprocessing)
        return tensor(images).to(self.device).contiguous(memory_format=torch.channels_last)

    def _loss(self, split: Split, chosen: npt.NDArray[np.int64], rng: np.random.Generator) -> "torch.Tensor":
        outputs = self.network(self._images(split, chosen, rng))
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        assert split.labels is not None
        return self.loss(*outputs, tensor(split.labels[chosen]).to(self.device))

    def _validate(self) -> tuple[float, float]:
        """Return the loss and the primary metric of the average on the validation images."""
        import torch

        split, problem = self.data["validation"], problem_of(self.signature)
        labels = split.labels
        assert labels is not None
        arrays = run_network(self.validated, [split.take(slice(None))[self.signature.inputs[0].name]])
        loss = self.loss(*map(torch.from_numpy, arrays), tensor(labels))
        names = [spec.name for spec in self.signature.outputs]
        predictions = problem.predictions_of(dict(zip(names, arrays, strict=True)))
        assert predictions is not None
        return float(loss), problem.score(predictions, labels)[problem.metric]

    def _step(self) -> None:
        super()._step()
        self.average.update_parameters(self.network)

    def _state(self) -> dict[str, Any]:
        return super()._state() | {"average": self.average}


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
    operators: ClassVar[Operators] = "convolutions"
    epochs: int = Field(8, ge=1, le=1000)
    packages: ClassVar[dict[str, str]] = {"torch": "torch", "torchvision": "torch"}
    from_scratch: ClassVar[bool] = True

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
        golden = record_golden(predict, data["test"], module_outputs=record_module_outputs(network, [example[:1]]))
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
