"""Pictures of other sizes, made of the real ones."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from frameworks.input_sizes import resized_samples, with_dynamic_size
from gauntlet.core.errors import StageError
from gauntlet.core.signature import Signature, TensorSpec
from gauntlet.datasets.splits import ArraySplit

SIDE = st.integers(1, 40)


def signature(layout: str, *shapes: tuple[int, ...]) -> Signature:
    specs = tuple(TensorSpec(name=f"x{n}", dtype="float32", shape=("batch", *s)) for n, s in enumerate(shapes))
    return Signature(inputs=specs, outputs=(), layout=layout)


@given(height=SIDE, width=SIDE, new_height=SIDE, new_width=SIDE)
def test_pictures_keep_their_values_when_they_are_resized(
    height: int, width: int, new_height: int, new_width: int
) -> None:
    images = np.arange(2 * 3 * height * width, dtype=np.float32).reshape(2, 3, height, width)
    spec = signature("NCHW", (3, height, width))
    cases = resized_samples(ArraySplit({"x0": images}), ((new_height, new_width), (height, width)), spec)
    found = cases[f"{new_height}x{new_width}"]["x0"]
    assert found.shape == (2, 3, new_height, new_width)
    for sample, channel in np.ndindex(2, 3):
        assert set(found[sample, channel].ravel()) <= set(images[sample, channel].ravel())
    assert (np.diff(found, axis=2) >= 0).all()  # in the order that they had
    assert (np.diff(found, axis=3) >= 0).all()
    assert np.array_equal(cases[f"{height}x{width}"]["x0"], images)
    last = resized_samples(
        ArraySplit({"x0": images.transpose(0, 2, 3, 1)}),
        ((new_height, new_width),),
        signature("NHWC", (height, width, 3)),
    )
    assert np.array_equal(last[f"{new_height}x{new_width}"]["x0"].transpose(0, 3, 1, 2), found)


def test_only_pictures_change_when_there_are_other_inputs() -> None:
    spec = signature("NHWC", (8, 6, 3), (5,))
    inputs = {"x0": np.zeros((20, 8, 6, 3), np.float32), "x1": np.ones((20, 5), np.float32)}
    found = resized_samples(ArraySplit(inputs), ((4, 4),), spec)["4x4"]
    assert (found["x0"].shape, found["x1"].shape) == ((16, 4, 4, 3), (16, 5))
    shapes = [tensor.shape for tensor in with_dynamic_size(spec).inputs]
    assert shapes == [("batch", "height", "width", 3), ("batch", 5)]


@pytest.mark.parametrize("spec", [signature("none", (3, 8, 8)), signature("NCHW", (64,))])
def test_sizes_are_refused_when_no_input_is_an_image(spec: Signature) -> None:
    with pytest.raises(StageError, match=r"train.input_sizes: no input is an image .*Fix: remove input_sizes"):
        resized_samples(ArraySplit({"x0": np.zeros((2, 64))}), ((4, 4),), spec)


def test_no_samples_are_resized_when_there_are_no_sizes() -> None:
    assert resized_samples(ArraySplit({"x0": np.zeros((2, 64))}), (), signature("none", (64,))) == {}
