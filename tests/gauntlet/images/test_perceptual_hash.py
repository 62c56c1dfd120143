"""An image keeps its fingerprint through what copies go through."""

import numpy as np
import pytest
from PIL import Image
from small_images import photograph

from gauntlet.datasets.near_duplicates import fingerprint, hashes, normalized_thumbnails


def distance(one: np.ndarray, other: np.ndarray) -> int:
    first, second = hashes((fingerprint(one), fingerprint(other)))
    return int(np.bitwise_count(first ^ second))


def correlation(one: np.ndarray, other: np.ndarray) -> float:
    first, second = normalized_thumbnails((fingerprint(one), fingerprint(other)))
    return float(first @ second)


@pytest.mark.parametrize("form", ["bytes", "floats", "darker", "gray"])
def test_values_of_another_range_or_brightness_are_the_same_image(form: str) -> None:
    image = photograph(1)
    changed = {
        "bytes": image.copy(),
        "floats": image.astype(np.float32) / 255,
        "darker": (image * 0.7).astype(np.uint8),
        "gray": np.asarray(Image.fromarray(image).convert("L").convert("RGB")),
    }[form]
    assert distance(image, changed) <= 4
    assert correlation(image, changed) > 0.995


def test_different_images_are_apart() -> None:
    assert min(distance(photograph(0), photograph(seed)) for seed in range(1, 20)) > 12


def test_even_image_resembles_nothing_and_values_that_are_no_numbers_do_no_harm() -> None:
    even = np.full((20, 20, 3), 7, np.uint8)
    assert correlation(even, even) == 0
    assert correlation(even, photograph(0)) == 0
    assert len(fingerprint(np.full((4, 4), np.nan)).thumbnail) == 256
