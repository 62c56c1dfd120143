"""Copies of test images in another split, which no digest finds."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from small_images import photograph

from gauntlet.core.errors import ConfigError, GateFailed
from gauntlet.core.report import Report
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.digits import Digits
from gauntlet.datasets.image_folder import ImageFolder
from gauntlet.datasets.npz_arrays import NpzArrays
from tasks.data import DataFacts, data
from wings.datasets.near_duplicates import fingerprint, normalized_thumbnails, similar_pairs

Made = Callable[..., Report[DataFacts]]


def resized(pixels: np.ndarray, factor: float) -> Image.Image:
    image = Image.fromarray(pixels)
    return image.resize((round(factor * image.width), round(factor * image.height)))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two classes of ten images in train and test, all different."""
    for split, first in (("train", 0), ("test", 100)):
        for number in range(20):
            target = tmp_path / "photos" / split / ("cat", "dog")[number % 2] / f"{number}.png"
            target.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(photograph(first + number)).save(target)
    return tmp_path / "photos"


@pytest.fixture
def load(folder: Path, workspace: Callable[..., Workspace]) -> Made:
    def run(max_near_duplicates: int | None = None, **config: object) -> Report[DataFacts]:
        source = ImageFolder.model_validate({"path": folder, "image_size": 32, **config})
        return data(source, workspace(), max_near_duplicates=max_near_duplicates)

    return run


def check_of(report: Report[DataFacts]):
    return next(check for check in report.checks if check.name == "data.max_near_duplicates")


def test_resized_and_recompressed_copies_are_found_and_named(load: Made, folder: Path) -> None:
    resized(photograph(0), 0.5).save(folder / "test" / "cat" / "smaller.png")
    resized(photograph(1), 1.7).save(folder / "test" / "dog" / "larger.png")
    Image.fromarray(photograph(3)).save(folder / "test" / "dog" / "compressed.jpg", quality=40)
    report = load()
    check = check_of(report)
    assert (check.value, check.passed, check.severity) == (3, False, "warning")
    pairs = {Path(pair.test).name: Path(pair.other).name for pair in report.facts.near_duplicates}
    assert pairs == {"smaller.png": "0.png", "larger.png": "1.png", "compressed.jpg": "3.png"}
    assert "resembles" in check.detail
    report.raise_if_blocked()


def test_number_of_copies_can_be_limited(load: Made, folder: Path) -> None:
    resized(photograph(0), 0.5).save(folder / "test" / "cat" / "smaller.png")
    load(max_near_duplicates=1).raise_if_blocked()
    with pytest.raises(GateFailed, match=r"data\.max_near_duplicates: 1 images must be <= 0 images; 4\.8 % of the"):
        load(max_near_duplicates=0).raise_if_blocked()


def test_equal_images_are_leaked_named_and_not_counted_again(load: Made, folder: Path) -> None:
    Image.fromarray(photograph(0)).save(folder / "test" / "dog" / "same.bmp")  # other bytes, same pixels
    report = load(split_fractions={"validation": 0, "calibration": 0.1}, seed=2)
    assert [(check.name, check.value) for check in report.failures] == [("data.leaked_images", 1)]
    assert "train/cat/0.png" in report.failures[0].detail
    assert "test/dog/same.bmp" in report.failures[0].detail
    assert check_of(report).value == 0


def test_copy_within_arrays_is_found_in_both_layouts(tmp_path: Path, workspace: Callable[..., Workspace]) -> None:
    images = np.stack([photograph(seed, 48, 48) for seed in range(24)]).astype(np.float32) / 255
    train, test = images[:12], images[12:].copy()
    test[5] = 0.9 * train[7] + 0.02
    for layout, axes in (("NHWC", (0, 1, 2, 3)), ("NCHW", (0, 3, 1, 2))):
        for name, arrays in (("train", train), ("test", test)):
            np.savez(tmp_path / f"{name}.npz", pixels=arrays.transpose(axes), labels=np.arange(12) % 3)
        report = data(NpzArrays(path=tmp_path, layout=layout), workspace())
        assert [(p.test, p.other) for p in report.facts.near_duplicates] == [("test[5]", "train[6]")]


def test_distinct_digits_are_not_taken_for_copies() -> None:
    """Handwritten digits are small and alike: the hardest images to tell apart."""
    splits = Digits().load().splits
    prints = {
        name: [fingerprint(image.transpose(1, 2, 0)) for image in splits[name].take(slice(None))["input"]]
        for name in ("train", "test")
    }
    assert len(similar_pairs(prints["test"], prints["train"])) <= len(prints["test"]) // 100


def test_vectors_are_no_images(tmp_path: Path, workspace: Callable[..., Workspace]) -> None:
    for name in ("calibration", "test"):
        np.savez(tmp_path / f"{name}.npz", x=np.random.default_rng(len(name)).random((6, 9)))
    report = data(NpzArrays(path=tmp_path, layout="none"), workspace())
    assert "data.max_near_duplicates" not in [check.name for check in report.checks]


def correlation(one: np.ndarray, other: np.ndarray) -> float:
    first, second = normalized_thumbnails((fingerprint(one), fingerprint(other)))
    return float(first @ second)


def test_even_image_resembles_nothing_and_values_that_are_no_numbers_do_no_harm() -> None:
    even = np.full((20, 20, 3), 7, np.uint8)
    assert correlation(even, even) == 0
    assert correlation(even, photograph(0)) == 0
    assert len(fingerprint(np.full((4, 4), np.nan)).thumbnail) == 256


def test_limit_asks_for_what_is_not_installed(load: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gauntlet.core.kinds.kinds", lambda part: {})
    with pytest.raises(ConfigError, match="max_near_duplicates: nothing that is installed brings it"):
        load(max_near_duplicates=1)
