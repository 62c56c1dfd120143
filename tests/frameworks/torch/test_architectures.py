"""Architectures by name: all of torchvision's, built for the data, or refused with the way out."""

from collections.abc import Callable

import numpy as np
import pytest

from frameworks.torch import network as source
from frameworks.torch.architectures import NamedArchitecture, known_names
from frameworks.torch.both_exporters import BothTorchExporters
from frameworks.torch.classifier_training import TorchTraining
from gauntlet.core.errors import StageError
from gauntlet.core.signature import Signature, TensorSpec
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.splits import ArraySplit
from tasks.export import export
from tasks.numerics import NumericsConfig, numerics
from tasks.structure import StructureConfig, structure
from tasks.train import train


def known(architecture: str, size: int = 32, **changes: object) -> NamedArchitecture:
    told = {"architecture": architecture, "channels": 3, "height": size, "width": size, "classes": 7} | changes
    return NamedArchitecture.model_validate(told)


def test_names_are_all_classifiers_when_torchvision_is_asked_itself() -> None:
    import torchvision

    shipped = torchvision.models.list_models(module=torchvision.models)
    assert {name.removeprefix("torchvision/") for name in known_names()} == {"small-cnn", "small-vit", *shipped}
    assert {"resnet18", "torchvision/resnet18"} <= set(known_names())


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("resnet81", "did you mean .*resnet18"),
        ("ResNet18", "did you mean .*resnet18"),
        ("mobilenetv2", "did you mean .*mobilenet_v2"),
        ("small_cnn", "did you mean .*small-cnn"),
        ("xyzzy", "unknown architecture; available: resnet18, small-cnn, small-vit, alexnet, .*vgg19"),
    ],
)
def test_name_is_refused_with_the_nearest_one_or_all(name: str, near: str) -> None:
    with pytest.raises(ValueError, match=near):
        TorchTraining(architecture=name)


@pytest.mark.parametrize(
    "architecture",
    [
        "small-cnn",
        "small-vit",
        "mobilenet_v3_small",
        pytest.param("resnet18", marks=pytest.mark.slow),
        pytest.param("googlenet", marks=pytest.mark.slow),
        pytest.param("vit_b_16", marks=pytest.mark.nightly),
        pytest.param("swin_t", marks=pytest.mark.nightly),
    ],
)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_network_answers_one_row_a_picture_when_built(architecture: str, layout: str) -> None:
    network = known(architecture, layout=layout).build()
    shape = (3, 3, 32, 32) if layout == "NCHW" else (3, 32, 32, 3)
    assert source.predict(network, np.zeros(shape, np.uint8), batch_size=2).shape == (3, 7)


def test_network_is_the_same_in_both_layouts_when_the_pictures_are() -> None:
    import torch

    networks = []
    for layout in ("NCHW", "NHWC"):
        torch.manual_seed(0)
        networks.append(known("small-cnn", layout=layout).build())
    pictures = np.random.default_rng(0).standard_normal((3, 3, 32, 32)).astype(np.float32)
    first, second = source.predict(networks[0], pictures), source.predict(networks[1], pictures.transpose(0, 2, 3, 1))
    np.testing.assert_allclose(first, second, rtol=0, atol=1e-6)


def test_resnet18_is_the_small_form_and_torchvisions_own_when_named_so() -> None:
    assert known("resnet18").build().conv1.stride == (1, 1)
    assert known("torchvision/resnet18").build().conv1.stride == (2, 2)
    assert known("resnet18", channels=1).build().conv1.in_channels == 1


def test_small_vit_takes_any_channels_and_square_pictures_of_whole_patches() -> None:
    grey = known("small-vit", size=16, channels=1).build()
    assert source.predict(grey, np.zeros((2, 1, 16, 16), np.float32)).shape == (2, 7)
    for changes in ({"size": 28}, {"width": 40}):
        with pytest.raises(StageError, match=r"square images .* multiple of 8 pixels, .* Fix: set data.image_size"):
            known("small-vit", **changes).build()


def test_network_is_refused_when_torchvision_takes_other_channels() -> None:
    with pytest.raises(StageError, match="mobilenet_v2 takes images of 3 channels, the data has 1"):
        known("mobilenet_v2", channels=1).build()


def test_network_is_refused_when_the_pictures_are_too_small() -> None:
    with pytest.raises(StageError, match=r"alexnet does not take images of 32x32 pixels \(.*\)\. Fix: use larger ones"):
        network = known("alexnet")
        network.check_image_size(network.build(), 32, 32)
    with pytest.raises(StageError, match=r"vit_b_32 .*16x16 .* Fix: remove this size from train.input_sizes"):
        network = known("vit_b_32")
        network.check_image_size(network.build(), 16, 16)


@pytest.mark.nightly
@pytest.mark.parametrize("name", [name for name in known_names() if "regnet" not in name])  # they draw on real memory
def test_every_architecture_builds_for_pictures_of_224_when_memory_is_no_question(name: str) -> None:
    import torch

    with torch.device("meta"):
        network = known(name, size=224).build()
    assert sum(p.numel() for p in network.parameters()) > 10_000


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
