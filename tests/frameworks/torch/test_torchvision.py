"""torchvision's architectures through both exporters: one at every change and one of each kind nightly."""

from collections.abc import Callable

import numpy as np
import pytest

from frameworks.torch.both_exporters import BothTorchExporters
from frameworks.torch.classifier_training import TorchTraining
from gauntlet.core.signature import Signature, TensorSpec
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.splits import ArraySplit
from tasks.export import export
from tasks.numerics import NumericsConfig, numerics
from tasks.structure import StructureConfig, structure
from tasks.train import train

CLASSES = 4
MORE = ["convnext_tiny", "densenet121", "efficientnet_b0", "googlenet", "mnasnet0_5", "mobilenet_v2", "regnet_y_400mf"]
MORE += ["resnet18", "swin_t", "shufflenet_v2_x1_0", "squeezenet1_1", "torchvision/resnet18", "vit_b_32"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["mobilenet_v3_small", *(pytest.param(name, marks=pytest.mark.nightly) for name in MORE)]
)
def test_both_exporters_are_right_when_the_architecture_is_torchvisions(
    name: str, workspace: Callable[..., Workspace]
) -> None:
    out, rng = workspace(), np.random.default_rng(0)
    labels = np.arange(24) % CLASSES
    pictures = (rng.standard_normal((24, 3, 32, 32)) + labels[:, None, None, None]).astype(np.float32)
    splits = {
        split: out.store_file(ArraySplit({"input": pictures}, labels).save(out.folder, split))
        for split in ("train", "validation", "test")
    }
    signature = Signature(
        inputs=(TensorSpec(name="input", dtype="float32", shape=("batch", 3, 32, 32)),),
        outputs=(),
        labels=tuple("abcd"),
    )
    source = train(TorchTraining(architecture=name, epochs=1), out, splits=splits, signature=signature)
    golden = source.artifacts["golden"]
    exported = export(
        BothTorchExporters(prefer="dynamo"),
        workspace(),
        model=source.artifacts["model"],
        signature=source.facts.signature,
        golden=golden,
    )
    assert (exported.facts.cross_check.used, exported.facts.cross_check.wrong) == ("dynamo", {})
    assert max(row.max_abs_error for row in exported.facts.cross_check.distances) <= 1e-4
    model = exported.artifacts["model"]
    assert not structure(StructureConfig(), out, model=model).failures
    assert not numerics(NumericsConfig(batch_sizes=(1, 2, 3, 7)), out, model=model, golden=golden).failures
