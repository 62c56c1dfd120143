"""Load, split and audit the data: the first stage."""

from typing import Annotated

from pydantic import Field

from gauntlet.core.frozen import Frozen
from gauntlet.core.report import Report
from gauntlet.core.signature import Signature
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.audit import audit_splits
from gauntlet.datasets.cifar import Cifar10, Cifar100
from gauntlet.datasets.coco import Coco
from gauntlet.datasets.digit_scenes import DigitScenes
from gauntlet.datasets.digits import Digits
from gauntlet.datasets.extra_samples import with_extra_samples
from gauntlet.datasets.image_folder import ImageFolder
from gauntlet.datasets.near_duplicates import NearDuplicate
from gauntlet.datasets.npz_arrays import NpzArrays
from gauntlet.datasets.splits import SkippedFile
from gauntlet.datasets.synthetic import Synthetic
from gauntlet.datasets.voc import Voc
from gauntlet.problems import problem_of

DataConfig = Annotated[
    Digits | DigitScenes | Cifar10 | Cifar100 | ImageFolder | Coco | Voc | NpzArrays | Synthetic,
    Field(discriminator="kind"),
]

MOST_PAIRS = 20


class DataFacts(Frozen):
    """The splits and the part of the signature that they determine."""

    signature: Signature = Field(description="inputs, layout and labels, as far as the data determines them")
    images: dict[str, int] = Field(description="count by split")
    images_per_class: dict[str, dict[str, int]] = Field(description="count by split and label")
    skipped: tuple[SkippedFile, ...] = Field((), description="the user's files that are in no split, and why")
    near_duplicates: tuple[NearDuplicate, ...] = Field(
        (), description=f"test images that resemble one of another split, the first {MOST_PAIRS}"
    )


def data(config: DataConfig, workspace: Workspace, *, files: tuple[object, ...] = ()) -> Report[DataFacts]:
    """Load the data, split and audit it, and store each split (see `gauntlet.datasets`).

    `files` are the user's files, given to make them part of the cache key.
    """
    dataset = config.load()
    if config.extra:
        dataset = with_extra_samples(dataset, config.extra)
    splits, labels, problem = dataset.splits, dataset.signature.labels, problem_of(dataset.signature)
    facts = DataFacts(
        signature=dataset.signature,
        images={name: len(split) for name, split in splits.items()},
        images_per_class={
            name: dict(zip(labels, counts, strict=False))
            for name, split in splits.items()
            if split.labels is not None and (counts := problem.samples_per_class(split.labels)) is not None
        },
        skipped=dataset.skipped,
    )
    audit = audit_splits(dataset, facts.images_per_class, config.max_near_duplicates)
    facts = facts.replace(near_duplicates=audit.near_duplicates[:MOST_PAIRS])
    artifacts = {name: workspace.store_file(split.save(workspace.folder, name)) for name, split in splits.items()}
    return Report(stage="data", facts=facts, checks=(*dataset.checks, *audit.checks), artifacts=artifacts)
