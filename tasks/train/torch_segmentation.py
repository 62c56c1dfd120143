"""PyTorch training of a small segmenter, from scratch."""

from typing import ClassVar, Literal

from pydantic import Field

from gauntlet.core.signature import Signature, Task, TensorSpec
from gauntlet.frameworks.torch.averaged_loop import AveragedLoop
from gauntlet.frameworks.torch.detector import DetectorSpec
from gauntlet.frameworks.torch.segmentation_loop import TorchSegmentationLoop
from gauntlet.frameworks.torch.segmenter import SIZE_MULTIPLE, SegmenterSpec
from tasks.train.torch_dense import DenseTraining

OUTPUT = "scores"


class TorchSegmentation(DenseTraining):
    """Train a small U-Net (0.4 million parameters) on masks, from scratch."""

    kind: Literal["torch-segmentation"] = "torch-segmentation"
    task: ClassVar[Task] = "segmentation"
    learns: ClassVar[str] = "masks"
    data_kinds: ClassVar[str] = "digit-scenes with data.truth: masks, or arrays"
    architecture: ClassVar[str] = "unet-small"
    size_multiple: ClassVar[int] = SIZE_MULTIPLE
    spec: ClassVar[type[DetectorSpec | SegmenterSpec]] = SegmenterSpec
    loop: ClassVar[type[AveragedLoop]] = TorchSegmentationLoop
    epochs: int = Field(6, ge=1, le=1000)

    def with_outputs(self, signature: Signature, height: int, width: int) -> Signature:
        """Return the signature with a score for each class and pixel."""
        shape = ("batch", len(signature.labels), height, width)
        output = TensorSpec(name=OUTPUT, dtype="float32", shape=shape)
        return signature.replace(outputs=(output,), primary_output=OUTPUT)
