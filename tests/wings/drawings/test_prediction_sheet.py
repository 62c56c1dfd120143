"""The drawing shows the samples that a candidate loses most on, with the truth beside the predictions."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gauntlet.core.artifact import Store
from gauntlet.core.signature import BoxDecoding, HogFeatures, Preprocessing, Signature, TensorSpec
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.splits import ArraySplit
from gauntlet.problems import problem_of
from gauntlet.problems.prediction import DRAWINGS, PAPER
from wings.drawings.prediction_sheet import CELL_WIDTH, GAP, TITLE_SIZE, draw_predictions, store_drawing

HOW = Preprocessing(height=32, width=32, scale=1 / 255, mean=(0.5,) * 3, std=(0.5,) * 3)
COUNT = 12


def signature(task: str, how: Preprocessing | None = HOW) -> Signature:
    detector = {"decode": BoxDecoding(kind="fcos", scores="s", boxes="b")} if task == "detection" else {}
    spec = TensorSpec(name="input", dtype="float32", shape=("batch", 3, 32, 32))
    out = TensorSpec(name="output", dtype="float32", shape=("batch", 2))
    return Signature(task=task, inputs=(spec,), outputs=(out,), preprocessing=how, labels=("a", "b"), **detector)


@pytest.fixture(scope="module")
def split() -> ArraySplit:
    """Image i is gray with level 20 * i."""
    levels = np.arange(COUNT) * 20 / 127.5 - 1
    return ArraySplit({"input": np.broadcast_to(levels[:, None, None, None], (COUNT, 3, 32, 32)).astype(np.float32)})


def boxes(*, lost: tuple[int, ...] = ()) -> np.ndarray:
    rows = np.tile(np.array([[4, 4, 20, 20, 1, 0.9], [0, 0, 0, 0, -1, 0]], np.float32), (COUNT, 1, 1))
    rows[list(lost), 0, 4] = -1
    return rows


def grays(sheet: Image.Image) -> list[int]:
    """The gray levels in the first column of the drawing, beside all text and boxes."""
    column = np.asarray(sheet)[:, GAP + 300].astype(int)
    plain = [tuple(p) for p in column.tolist()]
    levels = [p[0] for p in plain if p != PAPER and p[0] == p[1] == p[2] and p[0] % 20 == 0]
    return list(dict.fromkeys(levels))


def test_samples_that_the_candidate_loses_are_drawn_first_then_typical_ones(split: ArraySplit) -> None:
    truth = boxes()
    truth[:, 0, 5] = 1
    found = {"FP32 model": boxes(lost=(1,)), "this candidate": boxes(lost=(1, 4, 9))}
    sheet = draw_predictions(problem_of(signature("detection")), split, truth, found)
    assert sheet.width == GAP + 3 * (CELL_WIDTH + GAP)
    shown = [level // 20 for level in grays(sheet)]
    assert shown[:2] == [4, 9]
    assert len(shown) == 4
    assert 1 not in shown  # wrong before, too


def test_box_is_drawn_where_it_is_and_only_by_the_model_that_finds_it(split: ArraySplit) -> None:
    truth = boxes()
    found = {"FP32 model": boxes(), "this candidate": boxes(lost=tuple(range(COUNT)))}
    sheet = draw_predictions(problem_of(signature("detection")), split, truth, found)
    assert sheet is not None
    pixels = np.asarray(sheet)[GAP + round(1.5 * TITLE_SIZE) :]
    edges = []
    for column in range(3):
        cell = pixels[:320, GAP + column * (CELL_WIDTH + GAP) :][:, :320]
        edges.append(np.unique(cell[40, 40:200].reshape(-1, 3), axis=0).max(axis=0))
    assert np.array_equal(edges[0], edges[1])  # the frame's color
    assert not np.array_equal(edges[0], edges[2])


@pytest.mark.parametrize("task", ["classification", "segmentation", "multi-label", "regression"])
def test_each_problem_with_images_can_be_drawn(task: str, split: ArraySplit) -> None:
    rng = np.random.default_rng(0)
    arrays = {
        "classification": rng.integers(0, 2, COUNT),
        "segmentation": rng.integers(0, 2, (COUNT, 32, 32)),
        "multi-label": rng.integers(0, 2, (COUNT, 2)),
        "regression": rng.normal(size=(COUNT, 2)),
    }
    found = np.roll(arrays[task], 1, axis=0)
    sheet = draw_predictions(problem_of(signature(task)), split, arrays[task], {"prediction": found})
    assert sheet.width == GAP + 2 * (CELL_WIDTH + GAP)


def test_classifier_s_mistakes_come_first(split: ArraySplit) -> None:
    truth = np.zeros(COUNT, np.int64)
    found = truth.copy()
    found[[3, 7]] = 1
    sheet = draw_predictions(problem_of(signature("classification")), split, truth, {"prediction": found})
    assert sheet is not None
    assert [level // 20 for level in grays(sheet)][:2] == [3, 7]


def test_nothing_is_drawn_where_the_input_is_no_image(split: ArraySplit, tmp_path: Path) -> None:
    truth = np.zeros(COUNT, np.int64)
    space = Workspace(Store(tmp_path / "store"), tmp_path)
    for how in (None, HOW.replace(hog=HogFeatures())):
        problem = problem_of(signature("classification", how))
        assert draw_predictions(problem, split, truth, {"prediction": truth}) is None
        assert store_drawing(space, problem, split, truth, {"prediction": truth}) == {}
    stored = store_drawing(space, problem_of(signature("classification")), split, truth, {"prediction": truth})
    assert Image.open(space.path(stored[DRAWINGS])).format == "JPEG"
