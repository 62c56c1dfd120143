"""The table of flipped images: with pictures where the samples are some, and sent once."""

from pathlib import Path

import numpy as np
import pytest
from mlflow import MlflowClient

from flows.tracking.flips import MAX_IMAGES, TABLE, images_of, log_flips
from flows.tracking.server import tracking_uri
from gauntlet.datasets.splits import ArraySplit


def split_of(samples: np.ndarray) -> ArraySplit:
    return ArraySplit({"input": samples}, np.zeros(len(samples), np.int64))


@pytest.mark.parametrize("shape", [(3, 4, 6), (4, 6, 1)])
def test_picture_uses_the_whole_range_in_either_layout(shape: tuple[int, ...]) -> None:
    samples = np.random.default_rng(0).normal(5, 2, (9, *shape)).astype(np.float32)
    last, first = (np.asarray(picture.to_pil()) for picture in images_of(split_of(samples), [8, 0]))
    assert last.shape[:2] == (4, 6)
    assert (last.min(), last.max()) == (0, 255)
    assert not np.array_equal(last, first)


@pytest.mark.parametrize("samples", [np.zeros((3, 5), np.float32), np.zeros((3, 7, 8, 9), np.float32)])
def test_samples_that_are_no_pictures_make_none(samples: np.ndarray) -> None:
    assert images_of(split_of(samples), [0, 2]) == []


def test_table_is_logged_once_and_never_longer_than_a_person_reads(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    path = split_of(np.random.default_rng(0).normal(0, 1, (99, 3, 4, 4)).astype(np.float32)).save(tmp_path, "test")
    flips = [{"image": i, "truth": "one", "before": "one", "after": "two"} for i in range(MAX_IMAGES + 9)]
    with tracking_uri(uri):
        client = MlflowClient(uri)
        experiment = client.create_experiment("mine", (tmp_path / "artifacts").as_uri())
        run = client.create_run(experiment).info.run_id
        for _ in range(2):
            log_flips(client, run, flips, path)
        table = client.load_table(experiment, TABLE, [run])
        pictures = client.list_artifacts(run, f"table_images/{Path(TABLE).stem}")
    assert table["image"].tolist() == list(range(MAX_IMAGES))
    assert set(table["after"]) == {"two"}
    assert len(pictures) == 2 * MAX_IMAGES
