"""Test images with the truth and with what models predict, side by side, as one image."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from gauntlet.core.arrays import Array, Floats
from gauntlet.core.artifact import Artifact
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.splits import Split
from gauntlet.images.preprocessing import restored_pixels
from gauntlet.problems.base import Problem
from gauntlet.problems.prediction import DRAWINGS, INK, PAPER

WORST, TYPICAL = 2, 2
"""Samples that are drawn: those with the largest loss, and those in the middle."""
CELL_WIDTH = 400
"""Pixels; larger drawings are reduced."""
GAP = 8
TITLE_SIZE = 18
JPEG_QUALITY = 88
TRUTH = "truth"


def draw_predictions(
    problem: Problem, split: Split, truth: Array, predictions: Mapping[str, Array]
) -> Image.Image | None:
    """Return a few of the split's images with the truth and each model's predictions, or None where they are no images.

    `truth` and `predictions`, by the model's name, have shape (n, ...), as `Problem.score` takes them. Of one model,
    the worst samples are drawn and typical ones; of two, those where the second loses most against the first.
    """
    if not problem.can_be_drawn or not len(truth):
        return None
    scores = {name: problem.sample_scores(values, truth) for name, values in predictions.items()}
    chosen = _chosen([*scores.values()])
    columns = {TRUTH: truth[chosen], **{name: values[chosen] for name, values in predictions.items()}}
    inputs, (spec, how) = split.take(chosen), (problem.signature.inputs[0], problem.signature.preprocessing)
    assert how is not None  # `can_be_drawn`
    images = restored_pixels(inputs[spec.name], how, problem.signature.layout)
    rows: list[list[Image.Image]] = [[] for _ in chosen]
    for name, values in columns.items():
        for row, (index, pixels, prediction) in enumerate(zip(chosen, images, problem.shown(values), strict=True)):
            title = f"test image {index}: {name}" if name == TRUTH else f"{name}: {scores[name][index]:.2f}"
            rows[row].append(_cell(problem.draw(pixels, prediction), title))
    return _joined(rows)


def store_drawing(
    workspace: Workspace, problem: Problem, split: Split, truth: Array, predictions: Mapping[str, Array]
) -> dict[str, Artifact]:
    """Store what `draw_predictions` returns as the artifact `drawings`; nothing where there is nothing to draw."""
    image = draw_predictions(problem, split, truth, predictions)
    if image is None:
        return {}
    path = workspace.folder / "drawings.jpg"
    image.save(path, quality=JPEG_QUALITY)
    return {DRAWINGS: workspace.store_file(path)}


def _chosen(scores: Sequence[Floats]) -> npt.NDArray[np.int64]:
    """Return the samples to draw: those with the worst scores or largest losses first, then those in the middle."""
    loss = scores[0] - scores[1] if len(scores) > 1 else -scores[0]
    order = np.lexsort((scores[-1], -loss))
    middle = order[WORST:][max(0, (len(order) - WORST - TYPICAL) // 2) :]
    return np.concatenate([order[:WORST], middle[:TYPICAL]])


def _cell(drawing: Array, title: str) -> Image.Image:
    """Return a drawing below its title, at most `CELL_WIDTH` wide."""
    image = Image.fromarray(drawing)
    if image.width > CELL_WIDTH:
        image = image.resize((CELL_WIDTH, round(image.height * CELL_WIDTH / image.width)), Image.Resampling.LANCZOS)
    top = round(1.5 * TITLE_SIZE)
    cell = Image.new("RGB", (CELL_WIDTH, image.height + top), PAPER)
    ImageDraw.Draw(cell).text((0, GAP // 2), title, INK, ImageFont.load_default(TITLE_SIZE))
    cell.paste(image, (0, top))
    return cell


def _joined(rows: Sequence[Sequence[Image.Image]]) -> Image.Image:
    heights = [max(cell.height for cell in row) + GAP for row in rows]
    sheet = Image.new("RGB", (GAP + len(rows[0]) * (CELL_WIDTH + GAP), GAP + sum(heights)), PAPER)
    for row, top in zip(rows, np.cumsum([GAP, *heights]).tolist(), strict=False):
        for column, cell in enumerate(row):
            sheet.paste(cell, (GAP + column * (CELL_WIDTH + GAP), top))
    return sheet
