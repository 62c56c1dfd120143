"""MLPerf's own load generator asks the winner for answers: one caller, several at once, a crowd, or a whole archive.

Its verdict, VALID or INVALID, is the gate. The rules of a submission (600 s, 24 576 samples) are limits to configure.
"""

import json
from typing import Literal

import numpy as np
from pydantic import Field

from tasks.artifact import Artifact
from tasks.data.golden import Golden
from tasks.data.read import read_split
from tasks.errors import StageError
from tasks.frozen import Frozen, JsonObject, Number
from tasks.loadgen.driver import MOST_IN_MEMORY, Order, drive
from tasks.loadgen.logs import Scores, answers, figures, unmet
from tasks.report import Check, Report
from tasks.runtime.sandbox import ChildFailed, run_apart
from tasks.runtime.threads import usable_threads
from tasks.targets import Target
from tasks.targets.ort_cpu import OrtCpu
from tasks.workspace import Workspace

PACKAGES = {"mlperf_loadgen": "loadgen"}

METRIC = {
    "SingleStream": ("result_90.00_percentile_latency_ns", "p90 of a call", "ms", 1e-6),
    "MultiStream": ("result_99.00_percentile_per_query_latency_ns", "p99 of a call of {samples} samples", "ms", 1e-6),
    "Server": ("result_completed_samples_per_sec", "completed", "samples/s", 1.0),
    "Offline": ("result_samples_per_second", "throughput", "samples/s", 1.0),
}
"""What each scenario is about, as LoadGen names it in its log: key, text, unit, and factor."""
USUAL_QUERIES = {"SingleStream": 100, "MultiStream": 700, "Server": 1000, "Offline": 1}
"""LoadGen's early stopping asks for 64 to be sure of a 90th percentile and 662 of a 99th, more with slow ones."""


class Scenario(Frozen):
    """One way of asking, for so long."""

    scenario: Literal["SingleStream", "MultiStream", "Server", "Offline"]
    mode: Literal["performance", "accuracy"] = "performance"
    min_duration_s: float = Field(2, gt=0, description="a shorter run is INVALID; a submission needs 600")
    min_queries: int | None = Field(
        None, ge=1, description="fewer are INVALID; by default as many as LoadGen needs to be sure of its percentile"
    )
    batch: int = Field(8, ge=1, description="samples a call, at most; SingleStream always asks for one")
    target_latency_ms: float = Field(100, gt=0, description="Server: 99 % of the answers must be there by then")
    target_qps: float | None = Field(
        None, gt=0, description="Server: queries a second; by default, half of what single calls could serve"
    )
    expected_latency_ms: float | None = Field(
        None, gt=0, description="of a call; LoadGen prepares its queries by it. By default it is measured first"
    )
    threads: int | None = Field(
        None,
        ge=1,
        description="of the session, where it has no number of its own; by default, all that the process may use",
    )
    min_accuracy: float = Field(0.0, ge=0, le=1, description="accuracy mode: least share of right answers")
    timeout_s: float = Field(900, gt=0, description="LoadGen may hang; after this long it is ended")
    memory_gb: float = Field(8, gt=0, description="limit of the process")


class ScenarioFacts(Frozen):
    """What LoadGen said."""

    scenario: str
    mode: str
    valid: bool
    unmet: tuple[str, ...] = Field(description="conditions of a valid run that were not met, in LoadGen's words")
    metric: str
    value: Number
    unit: str
    scores: Scores | None = Field(description="accuracy mode only")
    figures: JsonObject = Field(description="every result of LoadGen's detailed log")


class LoadGenFacts(Frozen):
    """All scenarios."""

    results: tuple[ScenarioFacts, ...]


def loadgen(
    config: tuple[Scenario, ...],
    out: Workspace,
    *,
    model: Artifact,
    test: Artifact,
    golden: Artifact,
    target: Target | None = None,
) -> Report[LoadGenFacts]:
    """Let LoadGen run each scenario in a process of its own: it has global state, and can hang.

    Args:
        config: the scenarios.
        out: where to read and write.
        model: that is asked.
        test: the samples.
        golden: with their labels.
        target: where the model runs, a runtime of this environment; by default, ONNX Runtime's usual session.

    Raises:
        StageError: when a process crashed, hung or left no result.
    """
    split, truth = read_split(out.path(test)), Golden.load(out.path(golden))
    inputs = out.folder / "inputs.npz"
    count = len(split) if any(s.mode == "accuracy" for s in config) else MOST_IN_MEMORY
    np.savez(inputs, allow_pickle=False, **split.take(slice(0, count)))
    results, checks, artifacts = [], [], {}
    for number, scenario in enumerate(config):
        folder = out.folder / f"{number}-{scenario.scenario}-{scenario.mode}"
        folder.mkdir(exist_ok=True)
        order = Order(
            scenario=scenario.scenario,
            accuracy=scenario.mode == "accuracy",
            min_duration_ms=round(scenario.min_duration_s * 1000),
            min_queries=scenario.min_queries or USUAL_QUERIES[scenario.scenario],
            batch=scenario.batch,
            target_latency_ms=scenario.target_latency_ms,
            target_qps=scenario.target_qps,
            expected_latency_ms=scenario.expected_latency_ms,
            threads=scenario.threads or usable_threads(),
            engine=(target or OrtCpu()).options(),
        )
        try:
            run_apart(
                drive, order, out.path(model), inputs, folder,
                timeout_s=scenario.timeout_s, memory_bytes=round(scenario.memory_gb * 1e9),
            )  # fmt: skip
        except ChildFailed as error:
            raise StageError(f"LoadGen, {scenario.scenario}: {error}") from error
        scores = answers(folder, truth) if order.accuracy else None
        found = _facts(scenario, figures(folder), scores)
        results.append(found)
        checks += _checks(scenario, found)
        artifacts[f"log_{number}"] = out.keep(folder / "mlperf_log_detail.txt")
        out.progress(number + 1, len(config), "scenario")
    return Report(
        stage="loadgen", facts=LoadGenFacts(results=tuple(results)), checks=tuple(checks), artifacts=artifacts
    )


def _facts(scenario: Scenario, found: JsonObject, scores: Scores | None) -> ScenarioFacts:
    key, text, unit, factor = METRIC[scenario.scenario]
    if scores:
        key, text, unit, factor = "", "accuracy", "", 1.0
        value = scores.accuracy if scores.accuracy is not None else scores.top1_agreement
    else:
        value = float(str(found.get(key, "nan"))) * factor
    return ScenarioFacts(
        scenario=scenario.scenario,
        mode=scenario.mode,
        valid=scores is not None or found.get("result_validity") == "VALID",  # LoadGen judges only performance
        unmet=unmet(found),
        metric=text.format(samples=scenario.batch),
        value=value,
        unit=unit,
        scores=scores,
        figures=json.loads(json.dumps(found)),
    )


def _checks(scenario: Scenario, found: ScenarioFacts) -> list[Check]:
    told = f"{found.scenario}: {found.metric} {found.value:.4g} {found.unit}".rstrip()
    if found.scores is not None:
        return [
            Check(
                name="loadgen.min_accuracy",
                value=found.value,
                op=">=",
                limit=scenario.min_accuracy,
                detail=f"{told}, over {found.scores.samples} samples",
                remedy="" if found.value >= scenario.min_accuracy else "the model or its inputs differ from the tested",
            )
        ]
    return [
        Check(
            name="loadgen.valid",
            value=float(found.valid),
            op="==",
            limit=1,
            detail=told if found.valid else f"{told}; LoadGen says INVALID: {', '.join(found.unmet)}",
            remedy="" if found.valid else "raise min_duration_s, lower target_qps, or leave expected_latency_ms out",
        )
    ]
