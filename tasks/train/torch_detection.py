"""PyTorch training of a small detector, from scratch."""

from typing import ClassVar, Literal

from pydantic import Field

from gauntlet.core.box_decoding import BoxDecoding
from gauntlet.core.signature import Signature, Task, TensorSpec
from gauntlet.frameworks.torch.averaged_loop import AveragedLoop
from gauntlet.frameworks.torch.detection_loop import TorchDetectionLoop
from gauntlet.frameworks.torch.detector import STRIDE, DetectorSpec
from gauntlet.frameworks.torch.segmenter import SegmenterSpec
from tasks.train.torch_dense import DenseTraining

DECODING = BoxDecoding(kind="fcos", scores="scores", boxes="distances")


class TorchDetection(DenseTraining):
    """Train an anchor-free one-stage detector (FCOS, 0.3 million parameters) on boxes, from scratch."""

    kind: Literal["torch-detection"] = "torch-detection"
    task: ClassVar[Task] = "detection"
    learns: ClassVar[str] = "boxes"
    data_kinds: ClassVar[str] = "digit-scenes, coco or voc"
    architecture: ClassVar[str] = "fcos-small"
    size_multiple: ClassVar[int] = 2 * STRIDE
    spec: ClassVar[type[DetectorSpec | SegmenterSpec]] = DetectorSpec
    loop: ClassVar[type[AveragedLoop]] = TorchDetectionLoop
    epochs: int = Field(8, ge=1, le=1000)

    def with_outputs(self, signature: Signature, height: int, width: int) -> Signature:
        """Return the signature with scores and distances for each cell."""
        cells = (height // STRIDE, width // STRIDE)
        channels = {DECODING.scores: len(signature.labels), str(DECODING.boxes): 4}
        specs = (TensorSpec(name=n, dtype="float32", shape=("batch", c, *cells)) for n, c in channels.items())
        return signature.replace(outputs=tuple(specs), primary_output=DECODING.scores, decode=DECODING)
