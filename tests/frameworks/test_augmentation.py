"""The common recipe for training pictures, against a loop that says it one picture at a time."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from frameworks.augmentation import Augmentation
from gauntlet.core.errors import StageError
from gauntlet.core.signature import Preprocessing
from gauntlet.images.preprocessing import Layout, preprocess

HOW = Preprocessing(height=6, width=5, scale=1 / 255, mean=(0.1, 0.2, 0.3), std=(0.5, 0.25, 0.2))
PICTURES = np.random.default_rng(0).integers(1, 256, (40, 6, 5, 3), np.uint8)
INPUTS = np.stack([preprocess(picture, HOW) for picture in PICTURES])


def possible(picture: np.ndarray, padding: int, *, flip: bool) -> set[bytes]:
    """Return every picture that the recipe can make of one, made before it is normalized, as the usual recipe does."""
    padded = np.pad(picture, ((padding, padding), (padding, padding), (0, 0)))
    moves = range(2 * padding + 1)
    crops = [padded[top : top + 6, left : left + 5] for top in moves for left in moves]
    crops += [crop[:, ::-1] for crop in crops] if flip else []
    return {preprocess(crop, HOW).tobytes() for crop in crops}


def augmented(augment: Augmentation, seed: int, layout: Layout) -> np.ndarray:
    """Return what is made of the pictures, as NCHW; the inputs themselves do not change."""
    inputs = INPUTS if layout == "NCHW" else np.ascontiguousarray(INPUTS.transpose(0, 2, 3, 1))
    before = inputs.copy()
    result = augment.apply(inputs, np.random.default_rng(seed), layout=layout, preprocessing=HOW)
    assert (result.shape, result.dtype) == (inputs.shape, np.float32)
    assert np.array_equal(inputs, before)
    return result if layout == "NCHW" else result.transpose(0, 3, 1, 2)


@given(padding=st.integers(0, 3), flip=st.booleans(), seed=st.integers(0, 99), layout=st.sampled_from(["NCHW", "NHWC"]))
def test_every_picture_is_one_that_the_usual_recipe_makes(padding: int, flip: bool, seed: int, layout: Layout) -> None:
    augment = Augmentation(crop_padding=padding, flip=flip)
    result = augmented(augment, seed, layout)
    assert all(
        row.tobytes() in possible(picture, padding, flip=flip)
        for row, picture in zip(result[:2], PICTURES[:2], strict=True)
    )
    assert np.array_equal(augmented(augment, seed, layout), result)


def test_all_moves_and_both_sides_occur_when_there_are_enough_pictures() -> None:
    row = np.repeat(INPUTS[:1], 500, axis=0)
    result = Augmentation(crop_padding=1, flip=True).apply(row, np.random.default_rng(0), preprocessing=HOW)
    made = {picture.tobytes() for picture in result}
    assert made == possible(PICTURES[0], 1, flip=True)
    mirrored = Augmentation(flip=True).apply(row, np.random.default_rng(0))
    assert 200 < sum(np.array_equal(picture, INPUTS[0]) for picture in mirrored) < 300


def test_edge_is_zero_when_nothing_is_known_of_the_preprocessing() -> None:
    ones = np.ones((50, 1, 4, 4), np.float32)
    result = Augmentation(crop_padding=2).apply(ones, np.random.default_rng(0))
    assert set(np.unique(result)) == {0, 1}


@pytest.mark.parametrize(("shape", "layout"), [((5, 7), "none"), ((5, 7), "NCHW"), ((5, 3, 8, 8), "none")])
def test_augment_is_refused_when_the_inputs_are_no_pictures(shape: tuple[int, ...], layout: str) -> None:
    with pytest.raises(StageError, match=r"train\.augment shifts and mirrors images"):
        Augmentation(flip=True).apply(np.zeros(shape, np.float32), np.random.default_rng(0), layout=layout)


@given(seed=st.integers(0, 99), layout=st.sampled_from(["NCHW", "NHWC"]))
def test_recolored_picture_is_the_same_with_swapped_or_inverted_colors(seed: int, layout: Layout) -> None:
    images = augmented(Augmentation(recolor=True), seed, layout)
    made = [recoloring(picture, image) for picture, image in zip(PICTURES, images, strict=True)]
    assert {inverted for _, inverted in made} == {False, True}
    assert len({order for order, _ in made}) > 3


def recoloring(picture: np.ndarray, image: np.ndarray) -> tuple[tuple[int, ...], bool]:
    """Return the order of the channels, and whether it was inverted, that make an image of a picture."""
    for order in permutations(range(3)):
        for inverted in (False, True):
            colors = picture[:, :, order]
            if np.allclose(preprocess(255 - colors if inverted else colors, HOW), image, atol=1e-4):
                return order, inverted
    raise AssertionError("no order of the channels makes this image")


def test_unknown_preprocessing_is_refused_when_colors_are_to_change() -> None:
    with pytest.raises(StageError, match=r"what is black and what is white is unknown.*remove train\.augment\.recolor"):
        Augmentation(recolor=True).apply(INPUTS, np.random.default_rng(0))
