"""A split is opened whatever form it has, and a damaged file is one clear sentence."""

from pathlib import Path

import numpy as np
import pytest

from gauntlet.core.errors import StageError
from gauntlet.core.signature import Preprocessing
from gauntlet.datasets import read_split
from gauntlet.datasets.image_arrays import ImageArraySplit, ImageTransform
from gauntlet.datasets.image_files import ImageFileSplit
from gauntlet.datasets.splits import ArraySplit, Split, batches

RECIPE = ImageTransform(
    how=Preprocessing(height=4, width=4, scale=1 / 255, mean=(0.5,) * 3, std=(0.5,) * 3), layout="NCHW", name="x"
)
PIXELS = np.random.default_rng(0).integers(0, 256, (7, 4, 4, 3), np.uint8)
LABELS = np.arange(7) % 2


def in_files(folder: Path) -> ImageFileSplit:
    import hashlib

    from PIL import Image

    digests = []
    for number, pixels in enumerate(PIXELS):
        Image.fromarray(pixels).save(folder / f"{number}.png")
        digests.append(hashlib.sha256((folder / f"{number}.png").read_bytes()).digest())
    return ImageFileSplit(folder, tuple(f"{n}.png" for n in range(7)), LABELS, tuple(digests), RECIPE)


@pytest.fixture(params=["arrays", "pictures", "files"])
def split(request: pytest.FixtureRequest, tmp_path: Path) -> Split:
    pictures = ImageArraySplit(PIXELS, LABELS, RECIPE)
    forms = {
        "arrays": lambda: ArraySplit(pictures.take(slice(None)), LABELS),
        "pictures": lambda: pictures,
        "files": lambda: in_files(tmp_path),
    }
    return forms[request.param]()


def test_split_gives_the_same_inputs_whatever_its_form(split: Split, tmp_path: Path) -> None:
    again = read_split(split.save(tmp_path, "test"))
    assert type(again) is type(split)
    expected = ImageArraySplit(PIXELS, LABELS, RECIPE).take(slice(None))["x"]
    assert len(again) == 7
    assert again.labels.dtype == np.int64
    assert np.array_equal(again.labels, LABELS)
    for chosen in (slice(2, 5), slice(5, 99), np.array([6, 0, 6]), np.array([3])):
        assert np.array_equal(again.take(chosen)["x"], expected[chosen])
    assert [len(part["x"]) for part in batches(again, 3)] == [3, 3, 1]


def test_split_is_refused_naming_the_file_when_it_is_damaged(split: Split, tmp_path: Path) -> None:
    path = split.save(tmp_path, "test")
    whole = path.read_bytes()
    for content in (b"", whole[: len(whole) // 2], b"{}", b"[1, 2]"):
        path.write_bytes(content)
        with pytest.raises(StageError, match=str(path)):
            read_split(path)
