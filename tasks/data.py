"""Load, split and audit the data: the first stage."""

from typing import Annotated

import numpy as np
from pydantic import Field

from gauntlet.core.frozen import Frozen
from gauntlet.core.report import Report
from gauntlet.core.signature import Signature
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.audit import audit_splits
from gauntlet.datasets.cifar import Cifar10, Cifar100
from gauntlet.datasets.digits import Digits
from gauntlet.datasets.image_folder import ImageFolder
from gauntlet.datasets.npz_arrays import NpzArrays
from gauntlet.datasets.splits import Dataset, SkippedFile
from gauntlet.datasets.synthetic import Synthetic

DataConfig = Annotated[Digits | Cifar10 | Cifar100 | ImageFolder | NpzArrays | Synthetic, Field(discriminator="kind")]


class DataFacts(Frozen):
    """The splits and the part of the signature that they determine."""

    signature: Signature = Field(
        description="the model's inputs, layout and labels, as far as the data determines them"
    )
    images: dict[str, int] = Field(description="count by split")
    images_per_class: dict[str, dict[str, int]] = Field(description="count by split and label")
    skipped: tuple[SkippedFile, ...] = Field((), description="each of the user's files that is in no split, and why")


def data(config: DataConfig, workspace: Workspace, *, files: tuple[object, ...] = ()) -> Report[DataFacts]:
    """Load the data, split and audit it, and store each split (see `gauntlet.datasets`).

    Args:
        config: the dataset and its settings.
        workspace: where artifacts are written.
        files: the user's files that the data is read from; an argument so that their content is part of the cache key.
    """
    dataset = config.load()
    return Report(
        stage="data",
        facts=DataFacts(
            signature=dataset.signature,
            images={name: len(split) for name, split in dataset.splits.items()},
            images_per_class=_counts(dataset),
            skipped=dataset.skipped,
        ),
        checks=(*dataset.checks, *audit_splits(dataset)),
        artifacts={
            name: workspace.store_file(split.save(workspace.folder, name)) for name, split in dataset.splits.items()
        },
    )


def _counts(dataset: Dataset) -> dict[str, dict[str, int]]:
    names = dataset.signature.labels
    return {
        split: dict(zip(names, np.bincount(samples.labels, minlength=len(names)).tolist(), strict=False))
        for split, samples in dataset.splits.items()
        if samples.labels is not None
    }
