"""The images whose predicted class a candidate changed, as a table that MLflow shows with the images."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gauntlet.datasets import read_split
from gauntlet.datasets.splits import Split
from gauntlet.problems.accuracy_comparison import Flip

if TYPE_CHECKING:
    import mlflow
    from mlflow import MlflowClient

TABLE = "flips.json"
MAX_IMAGES = 50
CHANNELS = (1, 3)


def flip_rows(flips: tuple[Flip, ...], labels: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return the table's rows with class names; a class without a name is shown by its number."""

    def name(number: int) -> str:
        return labels[number] if 0 <= number < len(labels) else str(number)

    return [{"image": f.image, "truth": name(f.truth), "before": name(f.before), "after": name(f.after)} for f in flips]


def log_flips(client: "MlflowClient", run_id: str, flips: list[dict[str, Any]], test: Path) -> None:
    """Log the first fifty flips, with two files an image, to a candidate's run; `report.json` has all of them."""
    if TABLE in (file.path for file in client.list_artifacts(run_id)):
        return  # MLflow would append to it
    first = flips[:MAX_IMAGES]
    columns = {name: [flip[name] for flip in first] for name in first[0]}
    images = images_of(read_split(test), [flip["image"] for flip in first])
    client.log_table(run_id, columns | ({"picture": images} if images else {}), TABLE)


def images_of(split: Split, indices: list[int]) -> list["mlflow.Image"]:
    """Return samples as MLflow images, each stretched to the full range of values; none where they are not images."""
    import mlflow

    arrays = split.take(np.array(indices))
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
