"""A split is opened whatever form it has; files that are damaged, useless or changed later are named."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gauntlet.core.errors import StageError
from gauntlet.core.signature import Preprocessing
from gauntlet.datasets import read_split
from gauntlet.datasets.image_arrays import ImageArraySplit, ImageTransform
from gauntlet.datasets.image_files import ImageFileSplit
from gauntlet.datasets.splits import ArraySplit, Split, batches
from tasks.data import data

from .conftest import Make, Write, config, failed

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


@pytest.fixture
def spoilt(pictures: Write) -> Path:
    """Ten cats, ten dogs, and one file of each kind that is of no use."""
    root = pictures("cat", "dog")
    whole = (root / "cat" / "0000.png").read_bytes()
    (root / "cat" / "half.png").write_bytes(whole[: len(whole) // 2])
    (root / "cat" / "empty.jpg").write_bytes(b"")
    (root / "dog" / "notes.txt").write_text("these are dogs")
    (root / "dog" / "gone.png").symlink_to(root / "nowhere.png")
    (root / "dog" / "more").symlink_to(root / "cat")
    (root / "dog" / "nested").mkdir()
    (root / "dog" / "nested" / "lost.png").write_bytes(b"\x89PNG")
    (root / "README.md").write_text("my animals")
    Image.fromarray(np.zeros((9, 9), np.uint16)).save(root / "dog" / "deep.png")
    (root / ".cache").mkdir()
    for place in ("Thumbs.db", "cat/desktop.ini"):
        (root / place).write_bytes(b"files of the system are not, either")
    (root / "__MACOSX" / "cat").mkdir(parents=True)
    (root / "cat" / ".DS_Store").write_bytes(b"hidden files are not part of the data")
    return root


SPOILT = {
    "cat/half.png": "damaged: ",
    "cat/empty.jpg": "the file is empty",
    "dog/notes.txt": "not an image",
    "dog/gone.png": "a broken link",
    "dog/more": "a link to a folder",
    "dog/nested/lost.png": "not an image, or a damaged one",
    "README.md": "not in a class folder",
    "dog/deep.png": "pixel mode I;16",
}


def test_files_of_no_use_are_named_counted_and_refused_when_none_may_be_skipped(spoilt: Path, workspace: Make) -> None:
    report = data(config(spoilt), workspace())
    assert failed(report) == {"max_skipped": 8}
    (check,) = report.failures
    assert "and 3 more" in check.detail
    assert sum(name in check.detail for name in SPOILT) == 5
    assert "data.max_skipped" in check.remedy
    found = {skipped.file: skipped.reason for skipped in report.facts.skipped}
    assert found.keys() == SPOILT.keys()
    assert all(found[name].startswith(reason) for name, reason in SPOILT.items())


@pytest.mark.parametrize(("limit", "passes"), [(7, False), (8, True)])
def test_files_of_no_use_are_left_out_and_still_told_when_so_many_may_be_skipped(
    spoilt: Path, workspace: Make, limit: int, passes: bool
) -> None:
    report = data(config(spoilt, max_skipped=limit), workspace())
    assert (failed(report) == {}) == passes
    (check,) = [check for check in report.checks if check.name == "data.max_skipped"]
    assert (check.value, check.limit, check.passed) == (8, limit, passes)
    assert "cat/half.png" in check.detail
    assert sum(report.facts.images.values()) == 20


def test_folder_without_a_usable_picture_is_refused_naming_the_files(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.jpg").write_bytes(b"\xff\xd8\xff")
    with pytest.raises(
        StageError, match=r"no usable image; unusable files \(2\): cat/a\.jpg: .*; dog/a\.jpg: .* Fix: save them"
    ):
        config(tmp_path).load()


@pytest.mark.parametrize(
    ("folders", "told"),
    [
        ((), "no class folders in it; expected train/<class>/<image>"),
        (("cat",), r"one class folder \(cat\); a classifier needs at least two"),
        (("train/cat", "train/dog"), r"found \['train'\], but no 'test'"),
        (
            ("train/cat", "test/cat", "more/cat"),
            r"next to the splits \['train', 'test'\] there are folders .*\['more'\]",
        ),
        (("train/cat", "train/dog", "test"), r"are not splits with class folders: \['test'\]"),
        (("cat", "dog"), "2 samples are too few: none is left for test"),
        (("Training/cat", "Training/dog", "Testing/cat"), "Testing and Training are named as splits, not as classes"),
        (("test", "train"), r"test and train are named as splits.* or set data\.labelled=false"),
    ],
)
def test_folder_is_refused_with_what_is_wanted_when_it_lies_otherwise(
    pictures: Write, tmp_path: Path, folders: tuple[str, ...], told: str
) -> None:
    (tmp_path / "pictures").mkdir()
    root = pictures(*folders, count=1)
    with pytest.raises(StageError, match=told) as caught:
        config(root).load()
    assert str(caught.value).startswith(str(root))


def test_split_is_refused_naming_the_file_when_it_changed_or_vanished_later(pictures: Write, workspace: Make) -> None:
    root, out = pictures("cat", "dog"), workspace()
    split = read_split(out.path(data(config(root), out).artifacts["train"]))
    first, second = (root / split.files[number] for number in (0, 1))
    first.write_bytes(second.read_bytes())
    with pytest.raises(StageError, match=rf"{first}: changed after the data stage read it. Fix: run again"):
        split.take(slice(0, 4))
    second.unlink()
    with pytest.raises(StageError, match=rf"{second}: no longer readable"):
        split.take(np.array([1]))
    assert split.take(slice(2, 4))["input"].shape == (2, 3, 8, 10)
