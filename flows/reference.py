"""The networks of a run that candidates are made from."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from configs.schema import REFERENCE, PipelineConfig
from gauntlet.core.artifact import Artifact
from gauntlet.core.signature import Signature
from tasks.normalize.config import NormalizeFacts
from tasks.quantize import QuantizeConfig


@dataclass(frozen=True)
class Base:
    """An exported network; its normalized file is what passes and recipes start from."""

    name: str
    exported: Artifact  # as the exporter wrote it, or as it was brought
    model: Artifact  # normalized
    facts: NormalizeFacts
    golden: Artifact | None = None  # a pruned network's own outputs
    unpruned: Artifact | None = None
    calibrated: Mapping[str, Artifact] = field(default_factory=dict)  # empty without static recipes

    def recipes(self, config: PipelineConfig) -> tuple[QuantizeConfig, ...]:
        """Return the recipes that it is quantized by."""
        return config.quantize if self.name == REFERENCE else config.pruned_recipes


@dataclass(frozen=True)
class Reference:
    """The model that every candidate is made from and compared with."""

    splits: Mapping[str, Artifact]
    network: Artifact  # in its framework's format
    signature: Signature
    golden: Artifact  # the network's outputs
    base: Base
