"""Every surviving candidate against the FP32 model, on the machine where the question is asked."""

import os
from collections.abc import Mapping

import numpy as np
from pydantic import Field, PositiveInt, field_validator

from tasks.artifact import Artifact
from tasks.benchmark.race import Contender, race
from tasks.data.golden import Golden
from tasks.errors import StageError
from tasks.frozen import Frozen, Number
from tasks.report import Check, Report
from tasks.run_report import BenchmarkRow
from tasks.runtime.calls import calls
from tasks.runtime.session import open_session
from tasks.runtime.threads import usable_threads
from tasks.statistics import median_interval
from tasks.workspace import Workspace

TARGET = "ort-cpu"
CONTROL = "A/A control"


class BenchmarkConfig(Frozen):
    """How the candidates are timed. The default needs about 1.5 s a candidate and batch size."""

    batch_sizes: tuple[PositiveInt, ...] = Field(
        (1, 8), min_length=1, description="samples a call; each is measured, and of a fixed batch only that one"
    )
    rounds: int = Field(12, ge=6, le=1000, description="6 is the least that gives a 95 % interval")
    block_ms: float = Field(60, gt=0, description="how long a candidate runs at one batch size in one round")
    threads: int | None = Field(None, ge=1, description="of each session; by default, all that the process may use")
    timeout_s: float = Field(120, gt=0, description="a candidate that gives no answer for this long is out")
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


class RaceResult(Frozen):
    """What was measured of one candidate."""

    candidate: str
    error: str | None = Field(description="why it took no part, where it did not")
    rows: tuple[BenchmarkRow, ...]
    load_ms: Number
    first_call_ms: Number
    peak_rss_bytes: int = Field(description="of the whole worker process")
    round_medians_ms: dict[int, tuple[Number, ...]] = Field(description="raw: by batch size, one value a round")


class BenchmarkFacts(Frozen):
    """The race, with its control."""

    target: str
    reference: str
    threads: int
    rounds: int
    block_ms: Number
    load_average: tuple[Number, Number] = Field(description="one-minute load of the machine, before and after")
    aa_deviation: Number = Field(description="largest distance from 1 of the FP32 model's speed-up over itself")
    control: tuple[BenchmarkRow, ...]
    results: tuple[RaceResult, ...]

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
    paths = {name: out.path(model) for name, model in models.items()}
    real = Golden.load(out.path(golden)).real.inputs
    try:
        used = calls(open_session(paths[reference], level="off"), real)
    except StageError as error:
        raise StageError(f"the reference '{reference}' cannot be measured: {error}") from error
    batch_sizes = tuple(dict.fromkeys(used.batch(size) for size in config.batch_sizes))
    samples = {name: np.resize(array, (max(batch_sizes), *array.shape[1:])) for name, array in used.samples.items()}
    np.savez(inputs, allow_pickle=False, **samples)
    threads = config.threads or usable_threads()
    load_before = os.getloadavg()[0]
    measured = race(
        {**paths, CONTROL: paths[reference]},
        inputs,
        batch_sizes=batch_sizes,
        rounds=config.rounds,
        block_ms=config.block_ms,
        threads=threads,
        timeout_s=config.timeout_s,
        seed=config.seed,
        on_round=lambda done: out.progress(done, config.rounds, "round"),
    )
    for name in (reference, CONTROL):
        if measured[name].error:
            raise StageError(f"the reference '{reference}' cannot be measured: {measured[name].error}")
    base = measured[reference].round_medians_ms
    control = _rows(measured[CONTROL], base, is_reference=False)
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
    facts = BenchmarkFacts(
        target=TARGET,
        reference=reference,
        threads=threads,
        rounds=config.rounds,
        block_ms=config.block_ms,
        load_average=(load_before, os.getloadavg()[0]),
        aa_deviation=deviation,
        control=control,
        results=tuple(_result(measured[name], base, is_reference=name == reference) for name in models),
    )
    return Report(stage="benchmark", facts=facts, checks=(check,))


def _result(contender: Contender, base: dict[int, list[float]], *, is_reference: bool) -> RaceResult:
    return RaceResult(
        candidate=contender.name,
        error=contender.error,
        rows=() if contender.error else _rows(contender, base, is_reference=is_reference),
        load_ms=contender.load_ms,
        first_call_ms=contender.first_call_ms,
        peak_rss_bytes=contender.peak_rss_bytes,
        round_medians_ms={batch: tuple(values) for batch, values in contender.round_medians_ms.items()},
    )


def _rows(contender: Contender, base: dict[int, list[float]], *, is_reference: bool) -> tuple[BenchmarkRow, ...]:
    rows = []
    for batch, values in contender.round_medians_ms.items():
        median, low, high = median_interval(np.array(base[batch]) / np.array(values))
        verdict = "faster" if low > 1 else "slower" if high < 1 else "not resolved"
        rows.append(
            BenchmarkRow(
                target=TARGET,
                batch=batch,
                median_ms=float(np.median(values)),
                speedup=median,
                speedup_low=low,
                speedup_high=high,
                verdict="reference" if is_reference else verdict,
            )
        )
    return tuple(rows)
