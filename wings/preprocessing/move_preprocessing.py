"""The flow that makes a candidate of the winner with its preprocessing in the graph."""

from dataclasses import replace

from configs.schema import REFERENCE, PipelineConfig
from flows.search.base import Reference, Shipped
from flows.search.candidates import check_accuracy
from flows.stage import Line
from gauntlet.core.candidate import Candidate
from gauntlet.core.errors import GateFailed
from tasks.structure import structure
from wings.preprocessing import SUFFIX
from wings.preprocessing.library.from_images import from_images
from wings.preprocessing.library.preprocess import preprocess


def move_preprocessing(line: Line, config: PipelineConfig, reference: Reference, shipped: Shipped) -> Shipped:
    """Make a candidate of the winner with its preprocessing in the graph; return what of both is to be packaged.

    Where the candidate fails a gate, or is not proven faster from image to output, the winner stays.
    """
    final, winner, packaged = shipped.final, shipped.winner, shipped
    name = winner.name + SUFFIX
    with line.attempt(Candidate(name, winner.name, winner.network)) as candidate:
        if final.target not in [session.name for session in config.benchmark.all_sessions if session.env is None]:
            raise GateFailed(f"the preprocessing stays outside of the graph: the winner runs on {final.target}")
        made = candidate.make(
            preprocess,
            reference.base.facts.limits(config.numerics),
            model=shipped.model,
            golden=shipped.golden,
            test=shipped.test,
        ).artifacts
        images = replace(shipped, model=made["model"], golden=made["golden"], test=made["test"])
        candidate.stage(structure, config.structure, model=images.model)
        base = replace(reference.base, golden=winner.golden, temperature=winner.temperature)
        of_images = replace(reference, golden=images.golden, splits={**reference.splits, "test": images.test})
        check_accuracy(candidate, config, of_images, base, images.model)
        decision = candidate.stage(
            from_images,
            config.select,
            decision=final,
            benchmark=config.race,
            models={REFERENCE: reference.base.exported, final.winner: shipped.model, name: images.model},
            golden=images.golden,
            budget=config.budget,
        ).facts
        if decision.winner == name:
            packaged = replace(images, final=decision)
    return packaged
