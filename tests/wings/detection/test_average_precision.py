"""Average precision is COCO's, for the images as they are and for images that are drawn several times."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_boxes import imperfect, objects

from wings.detection.average_precision import coco_scores, match_detections, mean_average_precision


@settings(max_examples=15)
@given(seed=st.integers(0, 10_000), crowds=st.booleans())
def test_average_precision_is_that_of_cocos_tool(seed: int, crowds: bool) -> None:
    rng = np.random.default_rng(seed)
    truth = objects(rng, images=12, crowds=0.2 if crowds else 0)
    found = imperfect(truth, rng)
    own = mean_average_precision(match_detections(found, truth), np.ones((1, len(truth))))[0]
    assert own == pytest.approx(coco_scores(found, truth)["map"], abs=1e-9)
    assert 0 < own < 1


@settings(max_examples=10)
@given(seed=st.integers(0, 10_000))
def test_images_drawn_several_times_count_as_often(seed: int) -> None:
    rng = np.random.default_rng(seed)
    truth = objects(rng, images=10)
    found = imperfect(truth, rng)
    times = rng.multinomial(10, np.full(10, 0.1))
    own = mean_average_precision(match_detections(found, truth), times[None].astype(float))[0]
    chosen = np.repeat(np.arange(10), times)
    assert own == pytest.approx(coco_scores(found[chosen], truth[chosen])["map"], abs=1e-9)


def test_perfect_boxes_have_the_best_score_and_empty_ones_the_worst() -> None:
    truth = objects(np.random.default_rng(0), images=5)
    nothing = np.zeros((5, 3, 6), np.float32)
    nothing[:, :, 4] = -1
    assert coco_scores(truth, truth) == {"map": 1, "map_50": 1}
    assert coco_scores(nothing, truth) == {"map": 0, "map_50": 0}
    assert coco_scores(nothing, nothing) == {"map": 1, "map_50": 1}
    assert coco_scores(truth, nothing) == {"map": 0, "map_50": 0}
    assert mean_average_precision(match_detections(nothing, truth), np.ones((2, 5))).tolist() == [0, 0]


def test_second_box_of_an_object_is_wrong() -> None:
    truth = np.array([[[10, 10, 30, 30, 0, 1]]], np.float32)
    twice = np.array([[[10, 10, 30, 30, 0, 0.9], [10, 10, 30, 30, 0, 0.8]]], np.float32)
    matches = match_detections(twice, truth)[0]
    assert matches.correct[:, 0].all()
    assert not matches.correct[:, 1].any()


def test_box_on_an_object_that_does_not_count_is_neither_right_nor_wrong() -> None:
    truth = np.array([[[10, 10, 30, 30, 0, 1], [40, 40, 90, 90, 0, 0]]], np.float32)
    found = np.array([[[45, 45, 60, 60, 0, 0.9], [10, 10, 30, 30, 0, 0.8]]], np.float32)
    assert match_detections(found, truth)[0].ignored[:, 0].all()
    assert coco_scores(found, truth)["map"] == 1


@pytest.mark.parametrize(("shift", "map_50", "low", "high"), [(0, 1, 1, 1), (2, 1, 0.5, 0.9), (12, 0, 0, 0)])
def test_shifted_boxes_lose_precision(shift: float, map_50: float, low: float, high: float) -> None:
    truth = np.array([[[20, 20, 40, 40, 1, 1]]] * 4, np.float32)
    found = truth + np.array([shift, 0, shift, 0, 0, 0], np.float32)
    scores = coco_scores(found, truth)
    assert scores["map_50"] == map_50
    assert low <= scores["map"] <= high
