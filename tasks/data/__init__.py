"""The first stage: data, split, and audited before anything learns from it or is measured on it."""

from typing import Annotated

import numpy as np
from pydantic import Field

from tasks.data.arrays import Arrays
from tasks.data.audit import audit
from tasks.data.cifar import Cifar10, Cifar100
from tasks.data.dataset import Dataset, Skipped
from tasks.data.digits import Digits
from tasks.data.image_folder import ImageFolder
from tasks.data.synthetic import Synthetic
from tasks.frozen import Frozen
from tasks.report import Report
from tasks.signature import Signature
from tasks.workspace import Workspace

DataConfig = Annotated[Digits | Cifar10 | Cifar100 | ImageFolder | Arrays | Synthetic, Field(discriminator="kind")]


class DataFacts(Frozen):
    """What the data is."""

    signature: Signature = Field(description="the model's contract, as far as the data decides it")
    images: dict[str, int] = Field(description="count by split")
    images_per_class: dict[str, dict[str, int]] = Field(description="count by split and label")
    skipped: tuple[Skipped, ...] = Field((), description="every file of the user's that is in no split, and why")


def prepare(config: DataConfig, out: Workspace, *, files: tuple[object, ...] = ()) -> Report[DataFacts]:
    """Load the data, split it, audit it, and keep each split (see `tasks.data.read`).

    Args:
        config: which data.
        out: where to write.
        files: the user's files that the data is read from; they are an argument so that their content is part of the
            work's identity.
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
        checks=(*dataset.checks, *audit(dataset)),
        artifacts={name: out.keep(split.save(out.folder, name)) for name, split in dataset.splits.items()},
    )


def _counts(dataset: Dataset) -> dict[str, dict[str, int]]:
    names = dataset.signature.labels
    return {
        split: dict(zip(names, np.bincount(samples.labels, minlength=len(names)).tolist(), strict=False))
        for split, samples in dataset.splits.items()
        if samples.labels is not None
    }
