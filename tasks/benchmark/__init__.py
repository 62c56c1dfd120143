"""Race every accepted candidate against the FP32 model on this machine."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from gauntlet.benchmarking.contender import Contender, RaceEntry
from gauntlet.benchmarking.objective import Objective, deciding_batch
from gauntlet.benchmarking.race import CONTROL, RaceOutcome, race
from gauntlet.benchmarking.rows import aa_deviation, rows
from gauntlet.benchmarking.session_options import best_session, contender_name
from gauntlet.benchmarking.target_examiner import TargetExaminer
from gauntlet.benchmarking.target_validation import repeatability_check
from gauntlet.core.artifact import Artifact
from gauntlet.core.errors import StageError
from gauntlet.core.report import Report
from gauntlet.core.workspace import Workspace
from gauntlet.problems.accuracy_comparison import AccuracyLimits
from tasks.benchmark.candidate_profile import CandidateProfile, profile_candidate
from tasks.benchmark.config import BenchmarkConfig
from tasks.benchmark.facts import BenchmarkFacts, CandidateTiming
from tasks.benchmark.other_targets import (
    OtherTargetResult,
    aa_check,
    aa_checks,
    examine_candidates,
    missing_targets_check,
    race_on_target,
)
from tasks.benchmark.setup import BenchmarkSetup, prepare
from tasks.benchmark.target_accuracy import TargetAccuracy


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
) -> Report[BenchmarkFacts]:
    """Race the models by candidate name; the first is the reference and runs twice, for an A/A control.

    `golden` holds real inputs and the FP32 outputs for the test split. With `test` and `limits`, every candidate must
    keep its accuracy and its signal to noise on the deployment targets; candidates made from a pruned network have its
    outputs in `own_goldens`. Targets of a framework run `framework_model`, the reference's file. The `objective`
    decides between the sessions and targets of one candidate.

    Raises:
        StageError: when the reference cannot be measured.
    """
    setup = prepare(config, workspace, models, golden)
    source = workspace.path(framework_model) if framework_model else None
    paths = setup.paths if config.other_targets else {}
    examiner = TargetExaminer.from_models(paths, setup.inputs, setup.plan, source)
    accuracy = None
    if limits and test:
        own = {name: workspace.path(artifact) for name, artifact in (own_goldens or {}).items()}
        accuracy = TargetAccuracy(limits, workspace.path(golden), workspace.path(test), own)
    deployed = {
        contender_name(name, target, config.all_sessions): result
        for target in setup.deployable
        for name, result in examine_candidates(examiner, target, accuracy).items()
    }
    on_round = partial(workspace.progress, total=config.rounds, unit="round")
    outcome = _race(config, setup, deployed, on_round)
    running = {name: path for name, path in setup.paths.items() if outcome.contenders[name].error is None}
    examiner, reference = replace(examiner, models=running), setup.entries[setup.reference]
    others = [
        result.with_race_failure(outcome.contenders[name]) if name in outcome.contenders else result
        for name, result in deployed.items()
    ]
    for target in setup.comparison_only:
        others += race_on_target(target, examiner, reference, resolution=config.resolution, on_round=on_round).results
    return _report(config, workspace, setup, outcome, others, objective)


def _race(
    config: BenchmarkConfig,
    setup: BenchmarkSetup,
    deployed: Mapping[str, OtherTargetResult],
    on_round: Callable[[int], None],
) -> RaceOutcome:
    """Race all candidates in all session variants, and on the deployment targets that they were validated on."""
    on_targets = {
        name: RaceEntry.on_target(path, target)
        for target in setup.deployable
        for candidate, path in setup.paths.items()
        if deployed[name := contender_name(candidate, target, config.all_sessions)].can_race
    }
    contenders = {**setup.entries, **on_targets, CONTROL: setup.entries[setup.reference]}
    keep = (setup.reference, CONTROL)
    outcome = race(contenders, setup.inputs, setup.plan, keep=keep, on_round=on_round)
    for contender in outcome.contenders.values():  # each must run at every batch size
        repeatable = repeatability_check(contender.repeatability_db)
        contender.error = contender.failure or (None if repeatable.passed else str(repeatable))
    for name in keep:
        if error := outcome.contenders[name].error:
            raise StageError(f"the reference '{setup.reference}' cannot be measured: {error}")
    return outcome


def _report(
    config: BenchmarkConfig,
    workspace: Workspace,
    setup: BenchmarkSetup,
    outcome: RaceOutcome,
    others: list[OtherTargetResult],
    objective: Objective,
) -> Report[BenchmarkFacts]:
    targets, by_candidate = (*config.all_sessions, *setup.deployable), dict[str, list[Contender]]()
    for candidate in setup.paths:
        names = [contender_name(candidate, target, config.all_sessions) for target in targets]
        by_candidate[candidate] = [outcome.contenders[name] for name in names if name in outcome.contenders]
    base, control = outcome.contenders[setup.reference], outcome.contenders[CONTROL]
    batch = deciding_batch(objective, base.batches[0], rows(base, base, resolution=config.resolution))
    results = tuple(
        _timing(
            name,
            best_session(contenders, batch, config.resolution, objective),
            contenders,
            base,
            config,
            [result for result in others if result.candidate == name],
        ).replace(size_bytes=setup.sizes[name])
        for name, contenders in by_candidate.items()
    )
    profiles, artifacts = _profile(workspace, setup, by_candidate, results) if config.profile else ((), {})
    deviation = aa_deviation(control, base)
    facts = BenchmarkFacts(
        reference=setup.reference,
        threads=setup.plan.threads,
        rounds=config.rounds,
        block_ms=config.block_ms,
        resolution=config.resolution,
        machine=outcome.machine,
        aa_deviation=deviation,
        control=rows(control, base, resolution=config.resolution),
        results=results,
        session_variants=config.described(),
        other_targets=tuple(others),
        profiles=profiles,
    )
    checks = (
        aa_check(deviation, config.max_aa_deviation),
        *aa_checks(others, config.max_aa_deviation),
        *missing_targets_check(others),
        *(result.check for result in others if result.check),
    )
    return Report(stage="benchmark", facts=facts, checks=checks, artifacts=artifacts)


def _timing(
    name: str,
    best: Contender,
    tried: list[Contender],
    base: Contender,
    config: BenchmarkConfig,
    elsewhere: list[OtherTargetResult],
) -> CandidateTiming:
    """Return the measurements of a candidate; those on its `best` session or target come first."""
    resolution = config.resolution
    measured = [] if best.error else [best, *(c for c in tried if c is not best and c.error is None)]
    own_rows = tuple(row for contender in measured for row in rows(contender, base, resolution=resolution))
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


def _profile(
    workspace: Workspace,
    setup: BenchmarkSetup,
    contenders: Mapping[str, list[Contender]],
    results: tuple[CandidateTiming, ...],
) -> tuple[tuple[CandidateProfile, ...], dict[str, Artifact]]:
    """Profile the reference and the fastest candidate, each on its chosen target; return their traces too."""
    profiles: list[CandidateProfile] = []
    artifacts: dict[str, Artifact] = {}
    chosen = {result.candidate: result.target for result in results}
    fastest = min((r for r in results if r.rows), key=lambda r: r.rows[0].median_ms).candidate
    for role, name in {"reference": setup.reference, "fastest": fastest}.items():
        if role == "fastest" and name == setup.reference:
            continue
        contender = next(c for c in contenders[name] if c.entry.target == chosen[name])
        profile, trace = profile_candidate(contender, setup.inputs, setup.plan, workspace.folder)
        profiles.append(profile)
        if trace is not None:
            artifacts[f"trace_{role}"] = workspace.store_file(trace.rename(workspace.folder / f"trace-{role}.json"))
    return tuple(profiles), artifacts
