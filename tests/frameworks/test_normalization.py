"""A training from published weights warns where its images are not prepared as for them."""

import numpy as np
import pytest

from frameworks.normalization import normalization_checks
from gauntlet.core.signature import Preprocessing

pytestmark = pytest.mark.slow
IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
HALF = {"mean": (0.5,) * 3, "std": (0.5,) * 3}
CAFFE = {"mean": (0.408, 0.458, 0.485), "std": (1 / 255,) * 3, "channel_order": "BGR"}
WAYS = {"imagenet": IMAGENET, "half": HALF, "caffe": CAFFE}


def passing(expected: object) -> set[str]:
    """Return which ways of preparing images pass."""
    ways = {name: Preprocessing(height=96, width=96, scale=1 / 255, **way) for name, way in WAYS.items()}
    return {name for name, way in ways.items() if normalization_checks(way, expected)[0].passed}


@pytest.mark.parametrize(("name", "way"), [("resnet50", "imagenet"), ("googlenet", "half")])
def test_weights_of_torchvision_expect_what_its_transforms_do(name: str, way: str) -> None:
    import torchvision

    from frameworks.torch.classifier_training import expected_images

    network = torchvision.models.get_model(name, weights=None)
    expected = expected_images(network, "DEFAULT", f"torchvision/{name}")
    assert passing(expected) == {way}
    assert expected_images(network, "mine.pt", f"torchvision/{name}") is None
    [check] = normalization_checks(Preprocessing(height=9, width=9, scale=1 / 255, **CAFFE), expected)
    assert (check.severity, check.passed) == ("warning", False)
    assert "set data.mean: [" in check.remedy


@pytest.mark.parametrize(
    ("name", "way"),
    [("resnet50", "caffe"), ("mobilenetv2", "half"), ("mobilenetv3small", "half"), ("efficientnetb0", "imagenet")],
)
def test_weights_of_keras_expect_what_its_layers_or_functions_do(name: str, way: str) -> None:
    from frameworks.keras.expected_images import published_images

    assert passing(published_images(name, (96, 96, 3))) == {way}


def test_nothing_is_said_of_gray_images_or_unknown_weights() -> None:
    gray = Preprocessing(height=9, width=9, scale=1 / 255, mean=(0.5,), std=(0.5,))
    from gauntlet.frameworks.trial_run import ExpectedImages

    assert normalization_checks(gray, ExpectedImages("so", *(tuple(np.full(3, 0.5)),) * 2)) == ()
    assert normalization_checks(gray, None) == ()
