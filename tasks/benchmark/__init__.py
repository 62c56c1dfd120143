"""Race every accepted candidate against the FP32 model on this machine."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from gauntlet.core.artifact import Artifact
from gauntlet.core.errors import StageError
from gauntlet.core.report import Check, Report
from gauntlet.core.stage import stage
from gauntlet.core.workspace import Workspace
from gauntlet.problems.accuracy_comparison import AccuracyLimits
from gauntlet.race.confidence import CONFIDENCE
from gauntlet.race.contender import Contender, Entry, Plan
from gauntlet.race.objective import Objective, deciding_batch
from gauntlet.race.session_options import best_session, contender_name
from gauntlet.race.table import CONTROL, RaceTable, run_race
from gauntlet.race.target_examiner import ModelOnTarget, TargetExaminer
from tasks.benchmark.config import BenchmarkConfig
from tasks.benchmark.facts import BenchmarkFacts, CandidateProfile, CandidateTiming, profile_candidate
from tasks.benchmark.other_targets import (
    aa_check,
    aa_checks,
    examine_candidates,
    load_check,
    missing_targets_check,
    race_on_target,
)
from tasks.benchmark.setup import prepare
from tasks.benchmark.target_accuracy import TargetAccuracy

QUICK_ROUNDS = 6
"""Of a race that asks whether a longer one still holds."""
MAX_PROFILED = 3
"""Of equally fast candidates, one of which is selected later; each takes seconds."""


def still_holds(
    config: BenchmarkConfig,
    workspace: Workspace,
    *,
    known: BenchmarkFacts,
    models: Mapping[str, Artifact],
    golden: Artifact,
    objective: Objective = "latency",
    **_: object,
) -> bool:
    """Return whether a quick race of the reference and the fastest candidate agrees with an earlier race.

    Its control must be within the limit, as that of the earlier one was, and the intervals of the candidate's speed-up
    overlap at the first batch size. Its processes are not restarted: the `resolution` covers what they differ by.
    Candidates that failed take part at all batch sizes, and must fail again. A race that other work disturbed, or in
    which a target failed or was absent that may run now, is repeated.
    """
    worth_it = config.rounds > QUICK_ROUNDS and known.threads == config.default_threads
    if not (worth_it and known.is_quiet(config.max_aa_deviation)) or _may_measure_more(config, known):
        return False
    fastest = max((r for r in known.results if r.rows), key=lambda r: r.rows[0].speedup)
    then = fastest.rows[0]
    failed = [result.candidate for result in known.results if not result.rows]
    batches = config.batch_sizes if failed else (then.batch,)
    quick = config.alone(then.target, QUICK_ROUNDS).replace(batch_sizes=batches, restart_processes=False)
    raced = {name: models[name] for name in (known.reference, fastest.candidate, *failed)}
    facts = benchmark(quick, workspace, models=raced, golden=golden, objective=objective).facts
    rows = facts.result(fastest.candidate).rows
    now = next((row for row in rows if (row.target, row.batch) == (then.target, then.batch)), None)
    agrees = now is not None and then.overlaps(now) and facts.aa_deviation <= config.max_aa_deviation
    return agrees and not any(facts.result(name).rows for name in failed)


def _may_measure_more(config: BenchmarkConfig, known: BenchmarkFacts) -> bool:
    """Return whether what was not measured may be now, beside candidates without rows, which a quick race tries."""
    absent = {result.target for result in known.other_targets if result.status == "unavailable"}
    return (
        any(r.rows and len(known.chosen_rows(r.candidate)) < len(known.reference_rows) for r in known.results)
        or any(result.status == "failed" and not result.check for result in known.other_targets)
        or any(config.target_named(name).unavailable() is None for name in absent)
    )


@stage(measured=True, still_holds=still_holds)
def benchmark(
    config: BenchmarkConfig,
    workspace: Workspace,
    *,
    models: Mapping[str, Artifact],
    golden: Artifact,
    test: Artifact | None = None,
    limits: AccuracyLimits | None = None,
    own_goldens: Mapping[str, Artifact] | None = None,
    framework_model: Artifact | None = None,
    objective: Objective = "latency",
    confidence: float = CONFIDENCE,
    required_speedup: float | None = None,
    limit_s: float | None = None,
) -> Report[BenchmarkFacts]:
    """Race the models by candidate name; the first is the reference and runs twice, for an A/A control.

    `golden` holds real inputs and the FP32 outputs for the test split. With `test` and `limits`, every candidate must
    keep its accuracy and its signal to noise on the deployment targets; those of a pruned network have its outputs in
    `own_goldens`. Targets of a framework run `framework_model`, the reference's file. The `objective` decides between
    the sessions and targets of one candidate. Intervals have the `confidence`. With `required_speedup`, the race may
    end halfway (`gauntlet.race.halfway_look`); `limit_s` makes it shorter.

    Raises:
        StageError: when the reference cannot be measured.
    """
    entries, inputs, plan = prepare(config, workspace, models, golden, limit_s, confidence)
    reference, paths = next(iter(models)), {name: entries[name].model for name in models}
    source = workspace.path(framework_model) if framework_model else None
    examiner = TargetExaminer.from_models(paths if config.other_targets else {}, inputs, plan, source)
    deployed = _examined(config, examiner, _target_accuracy(workspace, golden, test, limits, own_goldens or {}), paths)
    on_round = partial(workspace.progress, total=config.rounds, unit="round")
    raced = entries | {name: entry for name, (result, entry) in deployed.items() if result.status == "measured"}
    how: dict[str, Any] = {"resolution": config.resolution, "required_speedup": required_speedup}
    table = run_race(raced, plan, reference, inputs=inputs, on_round=on_round, confidence=confidence, **how)
    running, others = _without_failures(examiner, paths, table), _after_race(deployed, table)
    for target in config.comparison_only:
        others += race_on_target(target, running, entries[reference], config.resolution, on_round)[0]
    tried = {name: _contenders(name, config, table) for name in models}
    batch = deciding_batch(objective, plan.batch_sizes[0], table.rows[reference])
    decide = {name: row for name, rows in table.rows.items() for row in rows if row.batch == batch}
    best = {name: best_session(each, batch, config.resolution, objective, decide) for name, each in tried.items()}
    timings = (_timing(name, best[name], tried[name], table, others) for name in models)
    results = tuple(t.replace(size_bytes=model.size_bytes) for t, model in zip(timings, models.values(), strict=True))
    profiles, artifacts = _profile(workspace, plan, inputs, tried, results) if config.profile else ((), {})
    raced_targets = {contender.entry.target for contender in table.contenders.values()}
    facts = BenchmarkFacts(
        reference=reference,
        threads=plan.threads,
        rounds=table.rounds,
        block_ms=config.block_ms,
        resolution=config.resolution,
        machine=table.machine,
        aa_deviation=table.aa_deviation,
        control=table.control,
        results=results,
        session_variants=tuple(each for each in config.described() if each.name in raced_targets),
        other_targets=tuple(others),
        profiles=profiles,
    )
    return Report(facts=facts, checks=_checks(config, facts), artifacts=artifacts)


def _target_accuracy(
    workspace: Workspace,
    golden: Artifact,
    test: Artifact | None,
    limits: AccuracyLimits | None,
    own_goldens: Mapping[str, Artifact],
) -> TargetAccuracy | None:
    """Return how candidates are judged on the deployment targets; None without limits or labeled samples."""
    if limits is None or test is None:
        return None
    own = {name: workspace.path(artifact) for name, artifact in own_goldens.items()}
    return TargetAccuracy(limits, workspace.path(golden), workspace.path(test), own)


def _without_failures(examiner: TargetExaminer, paths: Mapping[str, Path], table: RaceTable) -> TargetExaminer:
    """Let candidates that failed at any batch size leave the race, and return the examiner of the others.

    Raises:
        StageError: when the reference, which is the first, is among them.
    """
    reference = next(iter(paths))
    if error := table.failure(reference, CONTROL):
        raise StageError(f"the reference '{reference}' cannot be measured: {error}")
    for name, why in table.failures.items():
        table.contenders[name].error = why
    return replace(examiner, models={n: path for n, path in paths.items() if table.contenders[n].error is None})


def _checks(config: BenchmarkConfig, facts: BenchmarkFacts) -> tuple[Check, ...]:
    others = facts.other_targets
    return (
        aa_check(facts.aa_deviation, config.max_aa_deviation),
        load_check(facts.machine, facts.threads),
        *aa_checks(others, config.max_aa_deviation),
        *missing_targets_check(others),
        *(result.check for result in others if result.check),
    )


def _examined(
    config: BenchmarkConfig, examiner: TargetExaminer, accuracy: TargetAccuracy | None, paths: Mapping[str, Path]
) -> dict[str, tuple[ModelOnTarget, Entry]]:
    """Return each candidate on each deployment target by its contender's name: what was found, and how it races."""
    return {
        contender_name(name, target, config.all_sessions): (result, Entry.on_target(paths[name], target))
        for target in config.deployable
        for name, result in examine_candidates(examiner, target, accuracy).items()
    }


def _after_race(deployed: Mapping[str, tuple[ModelOnTarget, Entry]], table: RaceTable) -> list[ModelOnTarget]:
    """Return what is known of the candidates on deployment targets when the race is over: some failed in it."""
    return [
        result.replace(status="failed", reason=failure) if (failure := table.failure(name)) else result
        for name, (result, _) in deployed.items()
    ]


def _contenders(candidate: str, config: BenchmarkConfig, table: RaceTable) -> list[Contender]:
    """Return a candidate in every session and on every deployment target that it raced in."""
    targets = (*config.all_sessions, *config.deployable)
    names = [contender_name(candidate, target, config.all_sessions) for target in targets]
    return [table.contenders[name] for name in names if name in table.contenders]


def _timing(
    name: str, best: Contender, tried: list[Contender], table: RaceTable, others: Sequence[ModelOnTarget]
) -> CandidateTiming:
    """Return the measurements of a candidate; those on its `best` session or target come first."""
    elsewhere = [result for result in others if result.candidate == name]
    measured = [] if best.error else [best, *(c for c in tried if c is not best and c.error is None)]
    own_rows = tuple(row for contender in measured for row in table.rows[contender.name])
    own_noise = (r.validation.sqnr_db for r in elsewhere if r.target == best.entry.target and r.validation)
    return CandidateTiming(
        candidate=name,
        error=best.error,
        target=best.entry.target,
        own_noise_db=next(own_noise, math.inf),
        rows=own_rows + tuple(row for result in elsewhere for row in result.rows) if measured else (),
        load_ms=best.load_ms,
        first_call_ms=best.first_call_ms,
        peak_rss_bytes=best.peak_rss_bytes,
        warm_up_blocks=best.warm_up_blocks,
        round_medians_ms={batch: tuple(values) for batch, values in best.round_medians_ms.items()},
        round_quartiles_ms={batch: tuple(values) for batch, values in best.round_quartiles_ms.items()},
    )


def equally_fast(results: tuple[CandidateTiming, ...]) -> list[str]:
    """Return the fastest candidate, and then those that are not proven slower: another stage selects one of them."""
    first = {result.candidate: result.rows[0] for result in results if result.rows}
    names = sorted(first, key=lambda name: first[name].median_ms)
    return [name for name in names if name == names[0] or first[name].speedup_high >= first[names[0]].speedup_low]


def _profile(
    workspace: Workspace,
    plan: Plan,
    inputs: Path,
    contenders: Mapping[str, list[Contender]],
    results: tuple[CandidateTiming, ...],
) -> tuple[tuple[CandidateProfile, ...], dict[str, Artifact]]:
    """Profile the reference and the fastest candidates, each on its chosen target; return their traces too."""
    profiles: list[CandidateProfile] = []
    artifacts: dict[str, Artifact] = {}
    chosen = {result.candidate: result.target for result in results}
    reference = next(iter(contenders))
    fastest = (name for name in equally_fast(results) if name != reference)
    roles = ("fastest", *(f"fastest_{number}" for number in range(2, MAX_PROFILED + 1)))
    for role, name in (("reference", reference), *zip(roles, fastest, strict=False)):
        contender = next(c for c in contenders[name] if c.entry.target == chosen[name])
        profile, trace = profile_candidate(contender, inputs, plan, workspace.folder)
        profiles.append(profile)
        if trace is not None:
            artifacts[f"trace_{role}"] = workspace.store_file(trace.rename(workspace.folder / f"trace-{role}.json"))
    return tuple(profiles), artifacts
