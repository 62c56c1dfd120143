"""The digits: four disjoint, stratified splits of real pictures."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from gauntlet.core.workspace import Workspace
from gauntlet.datasets import read_split
from gauntlet.datasets.digits import Digits
from gauntlet.datasets.image_folder import ImageFolder
from gauntlet.datasets.splits import SPLITS
from tasks.data import data


def test_prepare_saves_the_splits_and_passes_when_the_data_is_sound(workspace: Callable[..., Workspace]) -> None:
    out = workspace()
    report = data(Digits(image_size=8, test_images=100), out)
    report.raise_if_blocked()
    expected = {"data.leaked_images", "data.empty_classes", "data.non_finite_values"}
    assert {check.name for check in report.checks} - {"data.max_near_duplicates"} == expected
    assert report.facts.images == {"train": 1389, "validation": 180, "calibration": 128, "test": 100}
    for name in SPLITS:
        split = read_split(out.path(report.artifacts[name]))
        counts = report.facts.images_per_class[name]
        assert [counts[str(digit)] for digit in range(10)] == np.bincount(split.labels, minlength=10).tolist()
    assert data(Digits(image_size=8, test_images=100), workspace()).artifacts == report.artifacts


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
