"""Load, split and audit the data: the first stage."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import Field

from gauntlet.core.errors import ConfigError, StageError
from gauntlet.core.facts import Facts, Section
from gauntlet.core.kinds import required
from gauntlet.core.report import Report
from gauntlet.core.signature import Signature
from gauntlet.core.stage import stage
from gauntlet.core.unions import OneOf
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.audit import audit_splits
from gauntlet.datasets.digits import Digits
from gauntlet.datasets.image_folder import ImageFolder
from gauntlet.datasets.npz_arrays import NpzArrays
from gauntlet.datasets.splits import DataSource, NearDuplicate, SkippedFile
from gauntlet.datasets.synthetic import Synthetic
from gauntlet.problems import problem_of

READERS = Digits, ImageFolder, NpzArrays, Synthetic
DataConfig = Annotated[DataSource, OneOf("reader", READERS)]

MAX_PAIRS = 20


class DataFacts(Facts):
    """The splits and the part of the signature that they determine."""

    signature: Signature = Field(description="inputs, layout and labels, as far as the data determines them")
    images: dict[str, int] = Field(description="count by split")
    images_per_class: dict[str, dict[str, int]] = Field(description="count by split and label")
    skipped: tuple[SkippedFile, ...] = Field((), description="the user's files that are in no split, and why")
    near_duplicates: tuple[NearDuplicate, ...] = Field(
        (), description=f"test images that resemble one of another split, the first {MAX_PAIRS}"
    )

    def section(self) -> Section:
        """Return the number of images, and those that resemble one of another split."""
        return Section("Data", template="data.html.j2", values={"facts": self})

    def datasets(self) -> Mapping[str, int]:
        """Return the splits."""
        return self.images


@stage(any_processor=True)
def data(
    config: DataConfig,
    workspace: Workspace,
    *,
    files: tuple[object, ...] = (),
    trained: bool = True,
    extra: tuple[Path, ...] = (),
    max_near_duplicates: int | None = None,
) -> Report[DataFacts]:
    """Load the data, split and audit it, and store each split (see `gauntlet.datasets`).

    With `trained`, a model learns from the splits, and an image in two of them is an error. `files` are the user's
    files, given to make them part of the cache key. `extra` are files of further samples.

    Raises:
        ConfigError: when the data cannot be read or split.
    """
    try:
        dataset = config.load()
        if extra:
            dataset = required("extra", "samples", "extra_samples")(dataset, extra)
    except StageError as error:
        raise ConfigError(f"data: {error}") from error
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
    audit = audit_splits(dataset, facts.images_per_class, max_near_duplicates, trained=trained)
    facts = facts.replace(near_duplicates=audit.near_duplicates[:MAX_PAIRS])
    artifacts = {name: workspace.store_file(split.save(workspace.folder, name)) for name, split in splits.items()}
    return Report(facts=facts, checks=(*dataset.checks, *audit.checks), artifacts=artifacts)
