"""The first stage: real data, split four ways, and audited before anything learns from it."""

from typing import Annotated

import numpy as np
from pydantic import Field

from tasks.data.arrays import Arrays
from tasks.data.audit import audit
from tasks.data.dataset import SPLITS
from tasks.data.digits import Digits
from tasks.frozen import Frozen
from tasks.report import Report
from tasks.signature import Signature
from tasks.workspace import Workspace

DataConfig = Annotated[Digits | Arrays, Field(discriminator="kind")]


class DataFacts(Frozen):
    """What the data is."""

    signature: Signature = Field(description="the model's contract, as far as the data decides it")
    images: dict[str, int] = Field(description="count by split")
    images_per_class: dict[str, dict[str, int]] = Field(description="count by split and label")


def prepare(config: DataConfig, out: Workspace, *, files: tuple[object, ...] = ()) -> Report[DataFacts]:
    """Load the data, split it, audit it, and save each split as `<split>.npz` with `inputs` and `labels`.

    Args:
        config: which data.
        out: where to write.
        files: the user's files that the data is read from; they are an argument so that their content is part of the
            work's identity.
    """
    dataset = config.load()
    artifacts = {}
    for name in SPLITS:
        path = out.folder / f"{name}.npz"
        np.savez(path, inputs=dataset.splits[name].inputs, labels=dataset.splits[name].labels)
        artifacts[name] = out.keep(path)
    counts = {
        name: {
            label: int(n)
            for label, n in zip(
                dataset.signature.labels,
                np.bincount(split.labels, minlength=len(dataset.signature.labels)),
                strict=False,
            )
        }
        for name, split in dataset.splits.items()
    }
    return Report(
        stage="data",
        facts=DataFacts(
            signature=dataset.signature,
            images={name: len(split.labels) for name, split in dataset.splits.items()},
            images_per_class=counts,
        ),
        checks=audit(dataset),
        artifacts=artifacts,
    )
