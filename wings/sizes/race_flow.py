"""The flow that races the winner at further sizes, once it is chosen."""

from collections import Counter

from configs.schema import REFERENCE, PipelineConfig
from flows.search.base import Reference, Shipped
from flows.stage import Line
from gauntlet.core.run_report import RunReport
from gauntlet.datasets.golden import RANDOM, REAL
from wings.sizes.library.size_race import sizes


def race_winner(line: Line, config: PipelineConfig, reference: Reference, shipped: Shipped) -> Shipped:
    """Record what was tried at which size, and race there; the gate refuses a winner that is slower in the mix.

    Nothing happens where outputs were compared at one size alone, or the winner takes other inputs than the reference.
    """
    compared = compared_sizes(line.run.report())
    named = bool(getattr(config.train, "lengths", ()) or getattr(config.train, "input_sizes", ()))
    if compared.keys() - {REAL} and shipped.golden == reference.golden:
        winner = {} if shipped.winner.name == REFERENCE else {shipped.winner.name: shipped.model}
        line.stage(
            sizes,
            config.race,
            models={REFERENCE: reference.base.exported, **winner},
            golden=shipped.golden,
            target=shipped.final.target,
            batch=shipped.final.batch,
            compared=compared,
            raced=named or getattr(config, "race_sizes") == "all",  # noqa: B009 - a key that this wing brings
        )
    return shipped


def compared_sizes(report: RunReport) -> dict[str, int]:
    """Return the sizes at which `numerics` compared outputs, and those of how many files; `REAL` is the data's size."""
    compared = (entry.facts.get("samples") for entry in report.stages if entry.stage == "numerics")
    return Counter(title for samples in compared if isinstance(samples, dict) for title in samples if title != RANDOM)
