"""The images on which a candidate's answer changed, as a table that MLflow shows with the pictures."""

from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import numpy.typing as npt
from mlflow import MlflowClient

from tasks.data.dataset import Split
from tasks.data.read import read_split

TABLE = "flips.json"
MOST_PICTURES = 50
CHANNELS = (1, 3)


def rows_of(flips: list[dict[str, int]], labels: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return the table's rows, with the classes' names; a class that the data never named is shown by its number."""

    def named(number: int) -> str:
        return labels[number] if 0 <= number < len(labels) else str(number)

    return [
        {"image": flip["image"], **{key: named(flip[key]) for key in ("truth", "before", "after")}} for flip in flips
    ]


def log_flips(client: MlflowClient, run_id: str, flips: list[dict[str, Any]], test: Path) -> None:
    """Log the table to a candidate's run, once: MLflow itself would append to one that is there.

    A picture costs two files, so only the first fifty flips are sent; `report.json` has all of them.
    """
    if TABLE in (file.path for file in client.list_artifacts(run_id)):
        return
    shown = flips[:MOST_PICTURES]
    columns = {name: [flip[name] for flip in shown] for name in shown[0]}
    pictures = pictures_of(read_split(test), [flip["image"] for flip in shown])
    client.log_table(run_id, columns | ({"picture": pictures} if pictures else {}), TABLE)


def pictures_of(split: Split, images: list[int]) -> list[mlflow.Image]:
    """Return some of a split's images as pictures; none when its samples are no pictures.

    Each is stretched to the full range, because what a model takes is normalised.
    """
    arrays = split.take(np.array(images))
    samples = next(iter(arrays.values()))
    if len(arrays) != 1 or samples.dtype.kind != "f" or samples.ndim != 4:
        return []
    if samples.shape[1] in CHANNELS:
        samples = np.moveaxis(samples, 1, 3)
    return [mlflow.Image(_stretched(sample)) for sample in samples] if samples.shape[3] in CHANNELS else []


def _stretched(sample: npt.NDArray[np.generic]) -> npt.NDArray[np.uint8]:
    values = np.nan_to_num(sample.astype(np.float64))
    span = float(np.ptp(values))
    stretched: npt.NDArray[np.uint8] = np.rint((values - values.min()) * (255 / span if span else 0)).astype(np.uint8)
    return stretched
