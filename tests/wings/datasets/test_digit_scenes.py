"""Scenes are repeatable, their boxes enclose the digits, and no split shares a digit or a scene with another."""

import numpy as np
import pytest
from pydantic import ValidationError
from sklearn.datasets import load_sample_images

from gauntlet.core.workspace import Workspace
from gauntlet.datasets import read_split
from gauntlet.datasets.image_arrays import ImageArraySplit
from gauntlet.datasets.splits import SPLITS
from tasks.data import data
from wings.datasets.digit_scenes import MAX_COVERED, DigitScenes, _half

SMALL = {"train_images": 40, "validation_images": 10, "calibration_images": 10, "test_images": 30}


def scenes(split: str = "train", **changes: object) -> ImageArraySplit:
    found = DigitScenes.model_validate(SMALL | changes).load().splits[split]
    assert isinstance(found, ImageArraySplit)
    return found


def test_same_seed_gives_the_same_pixels_and_another_seed_others() -> None:
    first, again, other = scenes(), scenes(), scenes(seed=1)
    assert np.array_equal(first.pixels, again.pixels)
    assert np.array_equal(first.labels, again.labels)
    assert not np.array_equal(first.pixels, other.pixels)


def test_every_scene_has_boxes_inside_the_image_that_leave_each_other_visible() -> None:
    split = scenes("test")
    assert split.pixels.shape == (30, 96, 96, 3)
    for rows in split.labels:
        boxes = rows[rows[:, 4] >= 0]
        assert 1 <= len(boxes) <= 12
        assert (boxes[:, :2] >= 0).all()
        assert (boxes[:, 2:4] <= 96).all()
        assert (boxes[:, 2:4] - boxes[:, :2] >= 1).all()
        for index, one in enumerate(boxes):
            for other in boxes[:index]:
                width = min(one[2], other[2]) - max(one[0], other[0])
                height = min(one[3], other[3]) - max(one[1], other[1])
                areas = [(b[2] - b[0]) * (b[3] - b[1]) for b in (one, other)]
                assert max(width, 0) * max(height, 0) <= MAX_COVERED * min(areas) + 1e-6
    assert len(set((split.labels[:, :, 4] >= 0).sum(axis=1).tolist())) > 5


def test_masks_show_the_class_of_the_digit_on_top_and_the_pixels_are_the_same() -> None:
    boxes, masks = scenes("test"), scenes("test", truth="masks")
    assert np.array_equal(boxes.pixels, masks.pixels)
    assert masks.labels.shape == (30, 96, 96)
    for rows, mask in zip(boxes.labels, masks.labels, strict=True):
        objects = rows[rows[:, 4] >= 0].astype(int)
        assert set(np.unique(mask).tolist()) - {0} <= set((objects[:, 4] + 1).tolist())
        covered = np.zeros(mask.shape, bool)
        for left, top, right, bottom, *_ in objects:
            covered[top:bottom, left:right] = True
        assert not mask[~covered].any()
        left, top, right, bottom, label, _ = objects[-1]  # nothing lies on it
        last = mask[top:bottom, left:right] == label + 1
        assert last.any(axis=0)[[0, -1]].all()
        assert last.any(axis=1)[[0, -1]].all()


def test_box_encloses_the_ink_of_its_digit() -> None:
    """On one digit alone, what differs from the same scene's ground is inside of the box, and fills it."""
    split = scenes(max_digits=1)
    inside = outside = 0.0
    for pixels, rows in zip(split.pixels, split.labels, strict=True):
        left, top, right, bottom = rows[0, :4].astype(int)
        mask = np.zeros((96, 96), bool)
        mask[top:bottom, left:right] = True
        spread = np.abs(np.diff(pixels.astype(float).mean(axis=2), axis=1, prepend=0))
        inside, outside = inside + spread[mask].mean(), outside + spread[~mask].mean()
    assert inside > 2 * outside  # the strokes' edges are there


def test_test_scenes_show_other_halves_of_the_photographs() -> None:
    photograph = load_sample_images().images[0]
    left, right = np.asarray(_half(photograph, right=False)), np.asarray(_half(photograph, right=True))
    assert np.array_equal(np.concatenate([left, right], axis=1), photograph)


def test_data_stage_passes_its_audit_and_stores_the_boxes(workspace: object) -> None:
    space: Workspace = workspace()  # type: ignore[operator]
    report = data(DigitScenes.model_validate(SMALL), space)
    report.raise_if_blocked()
    assert report.facts.images == {name: SMALL[f"{name}_images"] for name in SPLITS}
    assert set(report.facts.images_per_class["train"]) == set("0123456789")
    stored = read_split(space.path(report.artifacts["test"]))
    assert np.array_equal(stored.labels, scenes("test").labels)
    assert stored.take(slice(0, 2))["input"].shape == (2, 3, 96, 96)


def test_digits_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValidationError, match=r"digit_size: \[10, 60\]; 6 <= smallest <= largest <= 48"):
        DigitScenes(digit_size=(10, 60))
