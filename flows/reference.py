"""What the candidates of a run are made from and compared with."""

from collections.abc import Mapping
from dataclasses import dataclass

from gauntlet.core.artifact import Artifact
from gauntlet.core.signature import Signature
from tasks.normalize.config import NormalizeFacts


@dataclass(frozen=True)
class Base:
    """An exported network; its normalized file is what passes and recipes start from."""

    name: str
    exported: Artifact  # as the exporter wrote it, or as it was brought
    model: Artifact  # normalized
    facts: NormalizeFacts
    golden: Artifact | None = None  # a pruned network's own outputs
    unpruned: Artifact | None = None


@dataclass(frozen=True)
class Reference:
    """The model that every candidate is made from and compared with."""

    splits: Mapping[str, Artifact]
    network: Artifact  # in its framework's format
    signature: Signature
    golden: Artifact  # the network's outputs
    base: Base
