"""Images in folders become histograms of their gray values; annotated ones do not."""

from pathlib import Path

import numpy as np
from PIL import Image

from gauntlet.datasets.image_folder import ImageFolder


def test_images_become_histograms_of_their_gray_values(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for label in ("a", "b"):
        (tmp_path / label).mkdir()
        for number in range(10):
            pixels = rng.integers(0, 256, (20, 30, 3), np.uint8)
            Image.fromarray(pixels).save(tmp_path / label / f"{number}.png")
    folder = ImageFolder(path=tmp_path, image_size=16, hog={"pixels_per_cell": 4}, input_name="features")
    dataset = folder.load()
    assert folder.packages == {"skimage": "sklearn"}
    assert dataset.signature.preprocessing.mean == (0.0,)
    assert dataset.signature.layout == "none"
    taken = dataset.splits["test"].take(slice(0, 2))["features"]
    assert taken.shape == (2, *dataset.signature.inputs[0].shape[1:]) == (2, 9 * 4 * 9)
    assert 0 < taken.max() <= 1
