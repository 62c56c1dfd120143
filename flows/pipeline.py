"""The gauntlet: the diagram of the README, as code. Every `line.stage` runs a stage's work, then its gate."""

from dataclasses import replace

from prefect import flow

from configs.required_packages import require_packages
from configs.schema import REFERENCE, PipelineConfig
from flows.candidates import (
    add_normalized,
    export_network,
    move_preprocessing,
    optimize_base,
    prune_network,
    quantize_base,
)
from flows.composition import Reference, Shipped
from flows.recording import recording
from flows.remote.dispatch import remote_races
from flows.stage import Line
from flows.time_budget import TimeBudget
from gauntlet.runtime.operator_libraries import operator_libraries, with_operator_libraries
from tasks.benchmark import benchmark
from tasks.confirm import confirm
from tasks.data import data
from tasks.evaluate import evaluate
from tasks.explain import explain
from tasks.loadgen import loadgen
from tasks.package import package
from tasks.remote import remote
from tasks.select import select
from tasks.serve import serve
from tasks.train import train


@flow(name="gauntlet", flow_run_name="{config.name}", persist_result=False, log_prints=False)
def pipeline(config: PipelineConfig, *, fresh: bool = False) -> str:
    """Run a model through every stage; return the run's id. A gate that fails raises `GateFailed`.

    Args:
        config: everything about the run.
        fresh: repeat everything; use no results of earlier runs.
    """
    require_packages(config)
    config.benchmark.described()  # a session that this machine cannot open is refused before anything runs
    with with_operator_libraries(config.operator_libraries), recording(config, fresh=fresh) as run:
        line = Line(run)
        reference = make_reference(line, config)
        with line.side_by_side(config.runner) as lines:
            lines.branch(add_normalized, config, reference)
            time = TimeBudget(config.quantize_budget_s)
            base = optimize_base(lines, config, reference, reference.base, config.optimize, time)
            lines.branch(quantize_base, config, reference, base, time)
            prune_network(lines, config, reference, base.passes)
        choose_winner(line, config, reference)
    return run.id


def make_reference(line: Line, config: PipelineConfig) -> Reference:
    """Train a network or take a pretrained one, score it, and export it."""
    splits = line.stage(data, config.data, files=(*config.data.files(), *config.data.extra))
    files = (*config.train.files(), *operator_libraries())
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
    base = replace(export_network(line, config, network, signature, golden), temperature=temperature)
    line.run.add_candidate(REFERENCE, None, model=base.exported, accuracy=score)
    return Reference(splits.artifacts, network, signature, golden, base)


def choose_winner(line: Line, config: PipelineConfig, reference: Reference) -> None:
    """Race the candidates that passed every gate, explain the slow ones, select, confirm and ship the winner."""
    run, golden, test = line.run, reference.golden, reference.splits["test"]
    with remote_races(config.race, run.home.store, run.accepted_models, golden, reference.network) as elsewhere:
        race = line.measure(
            benchmark,
            config.race,
            models=run.accepted_models,
            golden=golden,
            test=test,
            limits=config.accuracy,
            own_goldens=run.own_goldens,
            framework_model=reference.network,
            objective=config.select.objective,
        ).facts
        if races := elsewhere.collect():
            line.stage(remote, config.race, races=races, rows=elsewhere.rows)
    reasons = line.stage(
        explain,
        config.benchmark,
        models=run.accepted_models,
        race=race,
        golden=golden,
        batch=config.select.deciding_batch(race),
        min_speedup=config.select.min_speedup,
    ).facts
    selection = line.stage(
        select, config.select, race=race, explanations=reasons, fidelities=run.fidelities, budget=config.budget
    ).facts
    final = line.measure(
        confirm,
        config.race,
        select=config.select,
        selection=selection,
        models=run.accepted_models,
        golden=golden,
        budget=config.budget,
    ).facts
    shipped = Shipped(final, run.accepted_models[final.winner], golden, test)
    if config.preprocess.in_graph:
        shipped = move_preprocessing(line, config, reference, shipped, selection.batch)
    ship(line, config, shipped)


def ship(line: Line, config: PipelineConfig, shipped: Shipped) -> None:
    """Measure the winner under LoadGen, package it, and prove the objective of its service."""
    model, golden, test = shipped.model, shipped.golden, shipped.test
    if config.loadgen:
        target = config.benchmark.target_named(shipped.final.target)
        line.measure(loadgen, config.loadgen, model=model, test=test, golden=golden, target=target)
    record = line.run.report()
    packaged = line.stage(
        package, config.package, report=record, final=shipped.final, model=model, golden=golden, test=test
    )
    if config.serve.objective:
        line.measure(serve, config.serve, bundle=packaged.artifacts["bundle"])
