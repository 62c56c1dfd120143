"""What candidates are made from, and which combinations of passes, pruning and recipes are tried.

Two rules keep out combinations that cannot win:

1. Recipes start from the file of the accepted passes, not also from the plain one. Passes are proven to keep the
   outputs and not to be slower, so that the same recipe on the plain file cannot win. A file with fused attention is
   for the recipes that leave ONNX Runtime's own operators as they are; the others start from one of the standard's.
2. A pruned network goes through the passes that helped the whole one, and through no others: it has the same graph
   with fewer channels, so what the runtime's own optimizer makes superfluous there is superfluous here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from configs.schema import REFERENCE, PipelineConfig
from flows.stage import Line
from gauntlet.core.artifact import Artifact
from gauntlet.core.candidate import Candidate
from gauntlet.core.report import Report
from gauntlet.core.signature import Signature
from gauntlet.onnx_model.normalization.opset import PER_CHANNEL_OPSET
from gauntlet.runtime.operator_libraries import operator_libraries
from tasks.export import export
from tasks.normalize import normalize
from tasks.normalize.config import NormalizeFacts
from tasks.numerics import numerics
from tasks.optimize import OptimizeConfig, OptimizeFacts
from tasks.optimize.chain import Chain
from tasks.quantize import QuantizeConfig
from tasks.select.decision import Decision
from tasks.structure import structure


@dataclass(frozen=True)
class Base:
    """An exported network; passes start from its normalized file, and recipes from what the passes made of that."""

    name: str
    exported: Artifact  # as the exporter wrote it, or as it was brought; normalized if the runtime is wrong on that
    model: Artifact  # normalized, and then changed by the accepted passes
    facts: NormalizeFacts
    golden: Artifact | None = None  # a pruned network's own outputs
    unpruned: Artifact | None = None
    temperature: float | None = None  # of its confidence
    passes: tuple[OptimizeConfig, ...] = ()  # that made the model
    fused: Artifact | None = None  # with attention as ONNX Runtime's own operators
    fusion: OptimizeConfig | None = None  # that made it
    calibrated: Mapping[str, Artifact] = field(default_factory=dict)  # empty without static recipes

    @property
    def parent(self) -> str:
        """The candidate whose file the model is."""
        return self.made_by(self.passes[0]) if self.passes else self.name

    def source(self, recipe: QuantizeConfig) -> tuple[str, Artifact]:
        """Return the candidate whose file a recipe starts from, and that file."""
        if self.fused and self.fusion and recipe.takes_fused_attention:
            return self.made_by(self.fusion), self.fused
        return self.parent, self.model

    def recipes(self, config: PipelineConfig) -> tuple[QuantizeConfig, ...]:
        """Return the recipes that it is quantized by."""
        return config.quantize if self.name == REFERENCE else config.pruned_recipes

    def made_by(self, change: OptimizeConfig | QuantizeConfig) -> str:
        """Return the name of the candidate that a pass or recipe makes of this network."""
        return change.name if self.name == REFERENCE else f"{self.name}-{change.name}"

    def candidate(self, name: str, parent: str) -> Candidate:
        """Return a candidate that is to be made of this network, from the file of another one."""
        return Candidate(name, parent, self.name, golden=self.golden, temperature=self.temperature)

    def after(self, accepted: Sequence[tuple[OptimizeConfig, Report[OptimizeFacts]]]) -> Self:
        """Return the base with the file of accepted passes as its model; as it is where there are none.

        Of several files the one with fewest nodes is taken, and only one of standard operators: quantizers do not know
        those of ONNX Runtime. A file with fused attention is kept beside it.
        """
        base = self
        for graph_pass, report in accepted:
            if report.facts.custom_operators and _keeps_products(graph_pass):
                base = replace(base, fused=report.artifacts["model"], fusion=graph_pass)
        standard = [(graph_pass, report) for graph_pass, report in accepted if not report.facts.custom_operators]
        if not standard:
            return base
        best, report = min(standard, key=lambda pair: pair[1].facts.nodes_after)
        return replace(base, model=report.artifacts["model"], passes=(best,))


def _keeps_products(graph_pass: OptimizeConfig) -> bool:
    """Return whether a pass or chain fuses attention, and makes no other operator that recipes do not know."""
    passes = graph_pass.passes if isinstance(graph_pass, Chain) else (graph_pass,)
    return any(part.fuses_attention for part in passes) and all(part.keeps_products for part in passes)


def export_network(
    line: Line, config: PipelineConfig, network: Artifact, signature: Signature, golden: Artifact, test: Artifact
) -> Base:
    """Export and normalize a network, and prove that the file computes what the network does."""
    files = (config.export.files, *operator_libraries())
    exported = line.make(export, config.export, model=network, signature=signature, golden=golden, files=files)
    brought = config.export.kind == "as-is"  # an exporter's opset was chosen in the configuration
    normalized = line.stage(
        normalize,
        config.normalize,
        model=exported.artifacts["model"],
        golden=golden,
        limits=config.numerics,
        max_opset=config.structure.max_opset if brought else PER_CHANNEL_OPSET,
        max_ir_version=config.structure.max_ir_version,
        files=operator_libraries(),
    )
    model = normalized.artifacts["normalized"]
    file = model if normalized.facts.repaired else exported.artifacts["model"]
    base = Base(line.name or REFERENCE, file, model, normalized.facts)
    line.stage(structure, config.structure, model=model)
    line.stage(numerics, base.facts.limits(config.numerics), model=model, golden=golden, test=test)
    return base


@dataclass(frozen=True)
class Reference:
    """The model that every candidate is made from and compared with."""

    splits: Mapping[str, Artifact]
    network: Artifact  # in its framework's format
    signature: Signature
    golden: Artifact  # the network's outputs
    base: Base
    candidate: Candidate


@dataclass(frozen=True)
class Shipped:
    """What is packaged: the winner's file, and the data as it takes them."""

    final: Decision
    winner: Candidate
    model: Artifact
    golden: Artifact
    test: Artifact
