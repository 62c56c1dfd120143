"""The gauntlet: the diagram of the README, as code. Every `line.stage` runs a stage's work, then its gate."""

import math
from contextlib import ExitStack
from dataclasses import replace

from prefect import flow

from configs.required_packages import require_packages
from configs.schema import NORMALIZED, REFERENCE, PipelineConfig
from flows.failure import fails_with_its_reason
from flows.recording import recording
from flows.search.base import Reference, Shipped, export_network
from flows.search.candidates import Candidates, search_candidates
from flows.search.time_budget import RunLimit
from flows.stage import Line
from gauntlet.core.candidate import Candidate, contenders_of
from gauntlet.core.kinds import kinds
from gauntlet.core.shipping import configured_stages
from gauntlet.runtime.operator_libraries import operator_libraries, with_operator_libraries
from tasks.benchmark import benchmark
from tasks.data import data
from tasks.evaluate import evaluate
from tasks.package import package
from tasks.select import select
from tasks.select.decision import Fidelity
from tasks.train import train

SEARCH_SHARE, RACE_SHARE, CONFIRM_SHARE = 0.3, 0.3, 0.2
"""Of the minutes of a run; the rest is for what comes before and after."""


@flow(name="gauntlet", flow_run_name="{config.name}", persist_result=False, log_prints=False)
@fails_with_its_reason
def pipeline(config: PipelineConfig, *, fresh: bool = False, minutes: float | None = None) -> str:
    """Run a model through every stage; return the run's id. A gate that fails raises `GateFailed`.

    Args:
        config: everything about the run.
        fresh: repeat everything; use no results of earlier runs.
        minutes: what the run should take at most: fewer recipes, batch sizes and rounds, but every gate.
    """
    limit = RunLimit(60 * minutes if minutes else None)
    require_packages(config)
    config.benchmark.described()  # a session that this machine cannot open is refused before anything runs
    with with_operator_libraries(config.operator_libraries), recording(config, fresh=fresh) as run:
        line = Line(run)
        reference = make_reference(line, config)
        search = config.replace(quantize_budget_s=limit.part(SEARCH_SHARE, config.quantize_budget_s))
        candidates = search_candidates(line, search, reference)
        choose_winner(line, config, reference, candidates, limit)
    return run.id


def make_reference(line: Line, config: PipelineConfig) -> Reference:
    """Train a network or take a pretrained one, score it, and export it."""
    splits = line.stage(
        data,
        config.data,
        files=(config.data.files, *config.extra_samples),
        trained=config.train.learns,
        extra=config.extra_samples,
        max_near_duplicates=config.max_near_duplicates,
    )
    files = (config.train.files, *operator_libraries())
    trained = line.stage(train, config.train, splits=splits.artifacts, signature=splits.facts.signature, files=files)
    network, signature, golden = trained.artifacts["model"], trained.facts.signature, trained.artifacts["golden"]
    score, temperature = None, None
    if predictions := trained.artifacts.get("predictions"):  # absent without labels
        scored = line.stage(
            evaluate,
            config.evaluate,
            predictions=predictions,
            signature=signature,
            history=trained.facts.history,
            model=network,
            splits=splits.artifacts,
        ).facts
        score, temperature = scored.accuracy, scored.temperature
    exported = export_network(line, config, network, signature, golden, splits.artifacts["test"])
    base = replace(exported, temperature=temperature)
    candidate = Candidate(
        REFERENCE,
        None,
        REFERENCE,
        temperature=temperature,
        model=base.exported,
        accuracy=score,
        status="accepted",
        reason="the reference",
    )
    line.run.record_candidate(candidate)
    return Reference(splits.artifacts, network, signature, golden, base, candidate)


def choose_winner(
    line: Line, config: PipelineConfig, reference: Reference, candidates: Candidates, limit: RunLimit
) -> None:
    """Race the candidates that passed every gate, let packages explain the slow ones, select and ship the winner."""
    golden, test = reference.golden, reference.splits["test"]
    contenders = contenders_of(candidates)
    raced = {name: model for name, candidate in contenders.items() if (model := candidate.model)}
    with ExitStack() as elsewhere:
        races = [elsewhere.enter_context(race(line, config.race, raced, reference)) for race in kinds("race").values()]
        race = line.stage(
            benchmark,
            config.race,
            models=raced,
            golden=golden,
            test=test,
            limits=config.accuracy,
            own_goldens={name: own for name, candidate in contenders.items() if (own := candidate.golden)},
            framework_model=reference.network,
            objective=config.select.objective,
            required_speedup=config.select.min_speedup if config.race.early_stopping else None,
            limit_s=limit.part(RACE_SHARE),
        ).facts
        for record_race in races:
            record_race()
    reasons = [
        line.stage(
            kinds("explanation")[name],
            config.benchmark,
            models=raced,
            race=race,
            golden=golden,
            batch=config.select.deciding_batch(race),
            min_speedup=config.select.min_speedup,
        ).facts
        for name in kinds("explanation")
    ]
    final = line.stage(
        select,
        config.select,
        after=race,
        benchmark=config.race,
        models=raced,
        golden=golden,
        explanations=next(iter(reasons), None),
        fidelities=fidelities_of(candidates),
        normalized={NORMALIZED: raced[NORMALIZED]} if NORMALIZED in raced else {},
        budget=config.budget,
        limit_s=limit.part(CONFIRM_SHARE),
    ).facts
    shipped = Shipped(final, contenders[final.winner], raced[final.winner], golden, test)
    for stage in configured_stages(config, "chosen").values():
        shipped = stage.function(line, config, reference, shipped)
    ship(line, config, shipped)


def fidelities_of(candidates: Candidates) -> dict[str, Fidelity]:
    """Return how close each candidate is to the network that it was made from: the trained one, or a pruned one."""
    known = {c.name: (c.network, c.sqnr_db) for c in candidates if c.sqnr_db is not None and not math.isnan(c.sqnr_db)}
    return {name: Fidelity(network=network, sqnr_db=sqnr_db) for name, (network, sqnr_db) in known.items()}


def ship(line: Line, config: PipelineConfig, shipped: Shipped) -> None:
    """Package the winner; before it and after it, run the stages that packages bring and the configuration asks for."""
    model, golden, test = shipped.model, shipped.golden, shipped.test
    target = config.benchmark.target_named(shipped.final.target)
    for name, stage in configured_stages(config, "winner").items():
        line.stage(stage.function, getattr(config, name), model=model, test=test, golden=golden, target=target)
    record = line.run.report()
    packaged = line.stage(
        package,
        config.package,
        report=record,
        final=shipped.final,
        target=target,
        threads=config.benchmark.default_threads,
        model=model,
        golden=golden,
        test=test,
    )
    for name, stage in configured_stages(config, "bundle").items():
        line.stage(stage.function, getattr(config, name), bundle=packaged.artifacts["bundle"])
