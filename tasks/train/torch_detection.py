"""PyTorch training of a small detector, from scratch."""

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from gauntlet.core.arrays import NamedArrays
from gauntlet.core.box_decoding import BoxDecoding
from gauntlet.core.errors import StageError
from gauntlet.core.report import Report
from gauntlet.core.signature import Signature, TensorSpec
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.golden import record_golden
from gauntlet.datasets.splits import Splits
from gauntlet.frameworks.torch import network as torch_network
from gauntlet.frameworks.torch.detection_loop import TorchDetectionLoop
from gauntlet.frameworks.torch.detector import STRIDE, DetectorSpec
from gauntlet.frameworks.torch.module_outputs import record_module_outputs
from gauntlet.frameworks.training import LoopConfig, require_labelled
from tasks.train.facts import TrainFacts, image_fields, report_model, single_input

SIZE_MULTIPLE = 2 * STRIDE
DECODING = BoxDecoding(kind="fcos", scores="scores", boxes="distances")


class TorchDetection(LoopConfig):
    """Train an anchor-free one-stage detector (FCOS, 0.3 million parameters) on boxes, from scratch."""

    kind: Literal["torch-detection"] = "torch-detection"
    packages: ClassVar[dict[str, str]] = {"torch": "torch", "torchvision": "torch"}
    epochs: int = Field(8, ge=1, le=1000)
    patience: int = Field(1000, ge=1, description="stop after this many epochs without a lower validation loss")
    learning_rate: float = Field(4e-3, gt=0, description="of AdamW, at the start of the cosine schedule")

    def fit(self, splits: Splits, signature: Signature, workspace: Workspace) -> Report[TrainFacts]:
        """Train, keep the best epoch, and record its golden outputs. See `tasks.train.train`."""
        import torch

        torch.manual_seed(self.seed)
        data, name = require_labelled(splits, "train", "validation", "test"), single_input(signature)
        signature = _with_outputs(signature)
        image = image_fields(signature, "train.kind: torch-detection", "use a data.kind with images")
        spec = DetectorSpec(channels=image["channels"], classes=image["classes"])
        network = spec.build()
        loop = TorchDetectionLoop(self, network, data, signature, workspace)
        check = loop.run()
        facts = TrainFacts(
            framework=f"torch {torch.__version__}",
            architecture="fcos-small",
            parameters=sum(p.numel() for p in network.parameters()),
            signature=signature,
            **loop.history.facts(),
        )
        if not check.passed:
            return Report(stage="train", facts=facts, checks=(check,))
        network = network.to(memory_format=torch.contiguous_format)

        def predict(inputs: NamedArrays) -> NamedArrays:
            return dict(zip(DECODING.outputs, torch_network.run_network(network, [inputs[name]]), strict=True))

        example = data["test"].take(slice(0, torch_network.EXAMPLES))[name].astype(np.float32)
        module_outputs = record_module_outputs(network, [example[:1]])
        golden = record_golden(predict, data["test"], seed=self.seed, module_outputs=module_outputs)
        path = workspace.folder / "model.pt"
        torch_network.save_network(path, spec, network, {name: example})
        return report_model(facts, golden, predict, data, workspace, path, checks=(check,))


def _with_outputs(signature: Signature) -> Signature:
    """Return the signature with the detector's outputs; raise StageError where the data does not fit it."""
    shape = signature.inputs[0].shape
    if signature.task != "detection":
        raise StageError(
            f"train.kind: torch-detection learns boxes; the data's labels are for {signature.task}. "
            "Fix: use data.kind digit-scenes, coco or voc, or another train.kind"
        )
    if signature.layout != "NCHW":
        raise StageError(f"train.kind: torch-detection takes NCHW images; data.layout is {signature.layout}")
    height, width = shape[-2:]
    if isinstance(height, str) or isinstance(width, str) or height % SIZE_MULTIPLE or width % SIZE_MULTIPLE:
        raise StageError(
            f"train.kind: torch-detection takes images whose height and width are multiples of {SIZE_MULTIPLE}; the "
            f"data has {height}x{width} pixels. Fix: change data.image_size"
        )
    cells = (height // STRIDE, width // STRIDE)
    channels = {"scores": len(signature.labels), "distances": 4}
    return signature.replace(
        inputs=tuple(spec.replace(dtype="float32") for spec in signature.inputs),
        outputs=tuple(
            TensorSpec(name=name, dtype="float32", shape=("batch", count, *cells)) for name, count in channels.items()
        ),
        primary_output=DECODING.scores,
        decode=DECODING,
    )
