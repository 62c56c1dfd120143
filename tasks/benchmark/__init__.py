"""Every surviving candidate against the FP32 model, on the machine where the question is asked."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from pydantic import Field, PositiveInt, field_validator

from tasks.artifact import Artifact
from tasks.benchmark.certainty import MOST_ROUNDS, RESOLUTION
from tasks.benchmark.further import Elsewhere, race_elsewhere
from tasks.benchmark.machine import Machine
from tasks.benchmark.profile import Profiled, profiled
from tasks.benchmark.race import CONTROL, Contender, Entry, Plan, race
from tasks.benchmark.rows import rows
from tasks.benchmark.truth import Expected
from tasks.data.golden import Golden
from tasks.errors import StageError
from tasks.frozen import Frozen, Number
from tasks.report import Check, Report
from tasks.run_report import BenchmarkRow
from tasks.runtime.calls import calls
from tasks.runtime.session import open_session
from tasks.runtime.threads import usable_threads
from tasks.targets import USUAL, Target
from tasks.targets.ort_cpu import OrtCpu
from tasks.workspace import Workspace


class BenchmarkConfig(Frozen):
    """How the candidates are timed. By default one that stays to the end runs for 0.9 s at each batch size."""

    batch_sizes: tuple[PositiveInt, ...] = Field(
        (1, 8), min_length=1, description="samples a call; each is measured, and of a fixed batch only that one"
    )
    rounds: int = Field(16, ge=6, le=MOST_ROUNDS, description="6 is the least that gives a 95 % interval")
    block_ms: float = Field(50, gt=0, description="how long a candidate runs at one batch size in one round")
    min_calls: int = Field(3, ge=1, description="calls in a block, however long they take")
    threads: int | None = Field(None, ge=1, description="of each session; by default, all that the process may use")
    timeout_s: float = Field(120, gt=0, description="a candidate that gives no answer for this long is out")
    resolution: float = Field(
        RESOLUTION,
        ge=0,
        lt=1,
        description="a smaller difference is never called: two processes of one file differ so much",
    )
    early_drop: bool = Field(
        True, description="race on without a candidate, at a batch size, that is proven slower than the leading one"
    )
    targets: tuple[Target, ...] = Field(
        (OrtCpu(),),
        min_length=1,
        description="names from `gauntlet targets`, or kinds with options; the first is ort-cpu, which decides",
    )
    profile: bool = Field(True, description="profile the fastest candidate and the reference after the race")
    max_aa_deviation: float = Field(
        0.05, gt=0, description="how far the FP32 model may be from itself before the machine is called too noisy"
    )
    seed: int = Field(0, ge=0, description="of the order in the rounds")

    @field_validator("batch_sizes")
    @classmethod
    def _each_once(cls, sizes: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(sizes)) < len(sizes):  # one round would count as two, and the intervals would be too narrow
            raise ValueError("name each batch size once")
        return sizes

    @field_validator("targets", mode="before")
    @classmethod
    def _by_name(cls, targets: Any) -> Any:
        known = {target.name: target for target in USUAL}
        if not isinstance(targets, list | tuple):
            return targets
        strangers = [name for name in targets if isinstance(name, str) and name not in known]
        if strangers:
            raise ValueError(f"{strangers[0]!r} is no target; there are {', '.join(known)}")
        return tuple(known[target] if isinstance(target, str) else target for target in targets)

    @field_validator("targets")
    @classmethod
    def _decided_on_the_cpu(cls, targets: tuple[Target, ...]) -> tuple[Target, ...]:
        if targets[0].kind != "ort-cpu":
            raise ValueError("the first target is ort-cpu: every other is compared with FP32 there")
        if len({target.name for target in targets}) < len(targets):
            raise ValueError("name each target once")
        return targets


class RaceResult(Frozen):
    """What was measured of one candidate."""

    candidate: str
    error: str | None = Field(description="why it took no part, where it did not")
    rows: tuple[BenchmarkRow, ...]
    load_ms: Number
    first_call_ms: Number
    peak_rss_bytes: int = Field(description="of the whole worker process")
    warm_up_blocks: dict[int, int] = Field(description="half blocks before the first round, by batch size")
    round_medians_ms: dict[int, tuple[Number, ...]] = Field(description="raw: by batch size, one value a round")


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
    elsewhere: tuple[Elsewhere, ...] = Field((), description="the candidates on further targets")
    profiles: tuple[Profiled, ...] = ()

    def result(self, candidate: str) -> RaceResult:
        """Return one candidate's result."""
        return next(r for r in self.results if r.candidate == candidate)


def benchmark(
    config: BenchmarkConfig, out: Workspace, *, models: Mapping[str, Artifact], golden: Artifact
) -> Report[BenchmarkFacts]:
    """Race the models; the first is the reference and runs twice, as its own control.

    Raises:
        StageError: when the reference itself cannot be measured.
    """
    inputs = out.folder / "inputs.npz"
    reference = next(iter(models))
    first, *further = config.targets
    entries = {
        name: Entry(out.path(model), first.command(), first.options(), first.name) for name, model in models.items()
    }
    real = Golden.load(out.path(golden)).real.inputs
    try:
        used = calls(open_session(entries[reference].model, level="off"), real)
    except StageError as error:
        raise StageError(f"the reference '{reference}' cannot be measured: {error}") from error
    batch_sizes = tuple(dict.fromkeys(used.batch(size) for size in config.batch_sizes))
    samples = {name: np.resize(array, (max(batch_sizes), *array.shape[1:])) for name, array in used.samples.items()}
    np.savez(inputs, allow_pickle=False, **samples)
    plan = Plan(
        batch_sizes=batch_sizes,
        rounds=config.rounds,
        block_ms=config.block_ms,
        threads=config.threads or usable_threads(),
        timeout_s=config.timeout_s,
        seed=config.seed,
        min_calls=config.min_calls,
        early_drop=config.early_drop,
    )
    result = race(
        {**entries, CONTROL: entries[reference]},
        inputs,
        plan,
        keep=(reference, CONTROL),
        on_round=lambda done: out.progress(done, config.rounds, "round"),
    )
    measured = result.contenders
    for name in (reference, CONTROL):
        if measured[name].error:
            raise StageError(f"the reference '{reference}' cannot be measured: {measured[name].error}")
    base = measured[reference]
    control = rows(measured[CONTROL], base, resolution=config.resolution)
    deviation = max(abs(row.speedup - 1) for row in control)
    check = Check(
        name="benchmark.max_aa_deviation",
        value=deviation,
        op="<=",
        limit=config.max_aa_deviation,
        severity="warning",
        detail="the FP32 model against itself; a speed-up within this distance is not believed",
        remedy="" if deviation <= config.max_aa_deviation else "let the machine rest, or raise benchmark.rounds",
    )
    elsewhere: list[Elsewhere] = []
    paths = {name: entry.model for name, entry in entries.items() if measured[name].error is None}
    expected: dict[str, Expected] = {}
    for name in paths if further else ():
        expected[name] = Expected.of(paths[name], inputs, config.timeout_s, expected.get(reference))
    for target in further:
        elsewhere += race_elsewhere(
            target,
            paths,
            entries[reference],
            expected,
            inputs,
            plan,
            resolution=config.resolution,
            on_round=lambda done: out.progress(done, config.rounds, "round"),
        )
    results = tuple(_result(measured[name], base, config.resolution, elsewhere) for name in models)
    artifacts: dict[str, Artifact] = {}
    profiles = []
    for role, name in {"reference": reference, "fastest": _fastest(results)}.items() if config.profile else ():
        if role == "fastest" and name == reference:
            continue
        found, trace = profiled(measured[name], inputs, plan, out.folder)
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
        elsewhere=tuple(elsewhere),
        profiles=tuple(profiles),
    )
    checks = (check, *(one.check for one in elsewhere if one.check))
    return Report(stage="benchmark", facts=facts, checks=checks, artifacts=artifacts)


def _result(contender: Contender, base: Contender, resolution: float, elsewhere: list[Elsewhere]) -> RaceResult:
    others = tuple(row for one in elsewhere if one.candidate == contender.name for row in one.rows)
    return RaceResult(
        candidate=contender.name,
        error=contender.error,
        rows=() if contender.error else rows(contender, base, resolution=resolution) + others,
        load_ms=contender.load_ms,
        first_call_ms=contender.first_call_ms,
        peak_rss_bytes=contender.peak_rss_bytes,
        warm_up_blocks=contender.warm_up_blocks,
        round_medians_ms={batch: tuple(values) for batch, values in contender.round_medians_ms.items()},
    )


def _fastest(results: tuple[RaceResult, ...]) -> str:
    """Return the candidate with the shortest call at the first batch size."""
    return min((r for r in results if r.rows), key=lambda r: r.rows[0].median_ms).candidate
