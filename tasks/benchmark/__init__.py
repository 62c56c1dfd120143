"""Every surviving candidate against the FP32 model, on the machine where the question is asked."""

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from pydantic import Field

from tasks.accuracy import AccuracyConfig
from tasks.artifact import Artifact
from tasks.benchmark.config import BenchmarkConfig
from tasks.benchmark.contender import Contender, Plan
from tasks.benchmark.further import Elsewhere, Examination, absent, controls, entry, race_elsewhere, same_twice
from tasks.benchmark.machine import Machine
from tasks.benchmark.profile import Profiled, profiled
from tasks.benchmark.race import CONTROL, race
from tasks.benchmark.rows import aa_deviation, rows
from tasks.benchmark.sessions import Session, contender, entries, preferred
from tasks.benchmark.shipping import AccuracyGate
from tasks.benchmark.truth import steady
from tasks.data.golden import Golden
from tasks.errors import StageError
from tasks.frozen import Frozen, Number
from tasks.report import Report
from tasks.run_report import BenchmarkRow
from tasks.runtime.calls import calls
from tasks.runtime.session import open_session
from tasks.workspace import Workspace


class RaceResult(Frozen):
    """What was measured of one candidate."""

    candidate: str
    error: str | None = Field(description="why it took no part, where it did not")
    target: str = Field(
        "",
        description="where it is to be run: one of `BenchmarkFacts.sessions`, or a further target; its rows come first",
    )
    own_noise_db: Number = Field(
        math.inf, description="signal to noise of that target's answers, against the same file computed exactly"
    )
    rows: tuple[BenchmarkRow, ...]
    load_ms: Number
    first_call_ms: Number
    peak_rss_bytes: int = Field(description="of the whole worker process")
    warm_up_blocks: dict[int, int] = Field(description="half blocks before the first round, by batch size")
    round_medians_ms: dict[int, tuple[Number, ...]] = Field(description="raw: by batch size, one value a round")
    round_quartiles_ms: dict[int, tuple[Number, ...]] = Field(description="the lower ones, which speed-ups compare")


class BenchmarkFacts(Frozen):
    """The race, with its control."""

    reference: str
    threads: int
    rounds: int
    block_ms: Number
    resolution: Number
    machine: Machine
    aa_deviation: Number = Field(description="largest distance from 1 of the FP32 model's speed-up over itself")
    control: tuple[BenchmarkRow, ...]
    results: tuple[RaceResult, ...]
    sessions: tuple[Session, ...] = ()
    elsewhere: tuple[Elsewhere, ...] = Field((), description="the candidates on further targets")
    profiles: tuple[Profiled, ...] = ()

    def result(self, candidate: str) -> RaceResult:
        """Return one candidate's result."""
        return next(r for r in self.results if r.candidate == candidate)

    def session(self, candidate: str) -> Session | None:
        """Return how the candidate is to be opened; None where it is to run on a further target."""
        return next((s for s in self.sessions if s.name == self.result(candidate).target), None)


def benchmark(
    config: BenchmarkConfig,
    out: Workspace,
    *,
    models: Mapping[str, Artifact],
    golden: Artifact,
    test: Artifact | None = None,
    limits: AccuracyConfig | None = None,
    source: Artifact | None = None,
) -> Report[BenchmarkFacts]:
    """Race the models; the first is the reference and runs twice, as its own control.

    Args:
        config: how.
        out: where to read and write.
        models: by candidate.
        golden: real inputs, and the FP32 answers to the test split.
        test: the split; with `limits`, every candidate must keep its accuracy on the targets that it may be shipped on.
        limits: what it may cost there.
        source: the source framework's own file of the reference, for the targets that run it.

    Raises:
        StageError: when the reference itself cannot be measured.
    """
    inputs = out.folder / "inputs.npz"
    reference, first = next(iter(models)), config.targets[0]
    if first.env and (why_not := first.unavailable()):
        raise StageError(f"the first target, {first.name}, cannot run here: {why_not}")
    targets, sessions = config.all_sessions, config.described()
    shipping = tuple(target for target in config.targets[1:] if target.name in config.also_ship_on)
    further = tuple(target for target in config.targets[1:] if target not in shipping)
    entrants = entries(models, targets, out)
    real = Golden.load(out.path(golden)).real.inputs
    try:
        used = calls(open_session(entrants[reference].model, level="off"), real)
    except StageError as error:
        raise StageError(f"the reference '{reference}' cannot be measured: {error}") from error
    batch_sizes = tuple(dict.fromkeys(used.batch(size) for size in config.batch_sizes))
    samples = {name: np.resize(array, (max(batch_sizes), *array.shape[1:])) for name, array in used.samples.items()}
    np.savez(inputs, allow_pickle=False, **samples)
    plan = Plan(
        batch_sizes=batch_sizes,
        rounds=config.rounds,
        block_ms=config.block_ms,
        threads=config.usual_threads,
        timeout_s=config.timeout_s,
        seed=config.seed,
        min_calls=config.min_calls,
        early_drop=config.early_drop,
    )
    paths = {name: entrants[name].model for name in models}
    gate = AccuracyGate(limits, out.path(golden), out.path(test)) if limits and test else None
    examination = Examination.of(
        paths if shipping or further else {}, inputs, plan, out.path(source) if source else None
    )
    shipped = {contender(n, t, targets): one for t in shipping for n, one in examination.on(t, gate).items()}
    for target in shipping:
        on_target = {contender(name, target, targets): entry(path, target) for name, path in paths.items()}
        entrants |= {name: one for name, one in on_target.items() if shipped[name].races}
    result = race(
        {**entrants, CONTROL: entrants[reference]},
        inputs,
        plan,
        keep=(reference, CONTROL),
        on_round=lambda done: out.progress(done, config.rounds, "round"),
    )
    measured = result.contenders
    for one in measured.values():
        unsteady = steady(one.parity_db)
        one.error = one.lost or (None if unsteady.passed else str(unsteady))  # every batch size is promised
    for name in (reference, CONTROL):
        if measured[name].error:
            raise StageError(f"the reference '{reference}' cannot be measured: {measured[name].error}")
    base = measured[reference]
    control = rows(measured[CONTROL], base, resolution=config.resolution)
    deviation = aa_deviation(measured[CONTROL], base)
    elsewhere = [one.judged(measured[name]) if name in measured else one for name, one in shipped.items()]
    running = {name: path for name, path in paths.items() if measured[name].error is None}
    for target in further:
        elsewhere += race_elsewhere(
            target,
            replace(examination, models=running),
            entrants[reference],
            resolution=config.resolution,
            on_round=lambda done: out.progress(done, config.rounds, "round"),
        )
    places = {name: [contender(name, target, targets) for target in (*targets, *shipping)] for name in models}
    ways = {name: [measured[place] for place in found if place in measured] for name, found in places.items()}
    results = tuple(_result(name, tried, base, plan, config.resolution, elsewhere) for name, tried in ways.items())
    artifacts: dict[str, Artifact] = {}
    profiles = []
    target_of = {result.candidate: result.target for result in results}
    for role, name in {"reference": reference, "fastest": _fastest(results)}.items() if config.profile else ():
        if role == "fastest" and name == reference:
            continue
        way = next(one for one in ways[name] if one.entry.target == target_of[name])
        found, trace = profiled(way, inputs, plan, out.folder)
        profiles.append(found)
        if trace is not None:
            artifacts[f"trace_{role}"] = out.keep(trace.rename(out.folder / f"trace-{role}.json"))
    facts = BenchmarkFacts(
        reference=reference,
        threads=plan.threads,
        rounds=config.rounds,
        block_ms=config.block_ms,
        resolution=config.resolution,
        machine=result.machine,
        aa_deviation=deviation,
        control=control,
        results=results,
        sessions=sessions,
        elsewhere=tuple(elsewhere),
        profiles=tuple(profiles),
    )
    checks = (
        same_twice(deviation, config.max_aa_deviation),
        *controls(elsewhere, config.max_aa_deviation),
        *absent(elsewhere),
        *(one.check for one in elsewhere if one.check),
    )
    return Report(stage="benchmark", facts=facts, checks=checks, artifacts=artifacts)


def _result(
    name: str, tried: list[Contender], base: Contender, plan: Plan, resolution: float, elsewhere: list[Elsewhere]
) -> RaceResult:
    """Return what was measured of a candidate, first where it is to be run."""
    best = preferred(tried, plan.batch_sizes[0], resolution)
    ways = [best, *(one for one in tried if one is not best and one.error is None)] if best.error is None else []
    measured = tuple(row for one in ways for row in rows(one, base, resolution=resolution))
    there = [one for one in elsewhere if one.candidate == name]
    noise_db = next((one.truth.sqnr_db for one in there if one.target == best.entry.target and one.truth), math.inf)
    return RaceResult(
        candidate=name,
        error=best.error,
        target=best.entry.target,
        own_noise_db=noise_db,
        rows=measured + tuple(row for one in there for row in one.rows) if ways else (),
        load_ms=best.load_ms,
        first_call_ms=best.first_call_ms,
        peak_rss_bytes=best.peak_rss_bytes,
        warm_up_blocks=best.warm_up_blocks,
        round_medians_ms={batch: tuple(values) for batch, values in best.round_medians_ms.items()},
        round_quartiles_ms={batch: tuple(values) for batch, values in best.round_quartiles_ms.items()},
    )


def _fastest(results: tuple[RaceResult, ...]) -> str:
    """Return the candidate with the shortest call at the first batch size."""
    return min((r for r in results if r.rows), key=lambda r: r.rows[0].median_ms).candidate
