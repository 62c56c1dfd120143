"""torchvision's architectures through both exporters: a trained one of each kind answers as PyTorch does."""

from collections.abc import Callable

import numpy as np
import pytest

from tasks.data.dataset import ArraySplit
from tasks.export import export
from tasks.export.vote import Both
from tasks.signature import Signature, TensorSpec
from tasks.train import train
from tasks.train.torch import TorchTraining
from tasks.validate.numerics import NumericsConfig, check_numerics
from tasks.validate.structure import StructureConfig, check_structure
from tasks.workspace import Workspace

CLASSES = 4
ARCHITECTURES = [
    "convnext_tiny",
    "densenet121",
    "efficientnet_b0",
    "googlenet",
    "mnasnet0_5",
    "mobilenet_v2",
    "mobilenet_v3_small",
    "regnet_y_400mf",
    "resnet18",
    "shufflenet_v2_x1_0",
    "squeezenet1_1",
    "swin_t",
    "torchvision/resnet18",
    "vit_b_32",
]


@pytest.mark.slow
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_both_exporters_are_right_when_the_architecture_is_torchvisions(
    name: str, workspace: Callable[..., Workspace]
) -> None:
    out, rng = workspace(), np.random.default_rng(0)
    labels = np.arange(24) % CLASSES
    pictures = (rng.standard_normal((24, 3, 32, 32)) + labels[:, None, None, None]).astype(np.float32)
    splits = {
        split: out.keep(ArraySplit({"input": pictures}, labels).save(out.folder, split))
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
        Both(prefer="dynamo"),
        workspace(),
        model=source.artifacts["model"],
        signature=source.facts.signature,
        golden=golden,
    )
    assert (exported.facts.vote.used, exported.facts.vote.wrong) == ("dynamo", {})
    assert max(row.max_abs_error for row in exported.facts.vote.distances) <= 1e-4
    model = exported.artifacts["model"]
    assert not check_structure(StructureConfig(), out, model=model).failures
    numerics = check_numerics(NumericsConfig(batch_sizes=(1, 2, 3, 7)), out, model=model, golden=golden)
    assert not numerics.failures
