"""Run the winner under MLPerf LoadGen's scenarios: single calls, batches, concurrent requests, or all samples at once.

LoadGen's verdict, VALID or INVALID, is the gate. The rules of a submission (600 s, 24 576 samples) are configurable.
"""

import json

from pydantic import Field

from gauntlet.core.arrays import write_arrays
from gauntlet.core.artifact import Artifact
from gauntlet.core.errors import StageError
from gauntlet.core.facts import Facts
from gauntlet.core.frozen import Frozen, JsonObject, Number
from gauntlet.core.report import Check, Report
from gauntlet.core.shipping import ShippingStage
from gauntlet.core.stage import stage
from gauntlet.core.workspace import Workspace
from gauntlet.datasets import read_split
from gauntlet.datasets.golden import Golden
from gauntlet.runtime.resources import usable_threads
from gauntlet.runtime.subprocess_runner import SubprocessFailed, run_in_subprocess
from gauntlet.targets import Target
from gauntlet.targets.ort import OrtCpu
from serving.stages.loadgen.driver import MAX_IN_MEMORY, MEMORY_BYTES, LoadGenJob, Scenario, run_scenario
from serving.stages.loadgen.logs import Scores, figures, score_outputs, unmet_conditions

METRIC = {
    "SingleStream": ("result_90.00_percentile_latency_ns", "p90 of a call", "ms", 1e-6),
    "MultiStream": ("result_99.00_percentile_per_query_latency_ns", "p99 of a call of {samples} samples", "ms", 1e-6),
    "Server": ("result_completed_samples_per_sec", "completed", "samples/s", 1.0),
    "Offline": ("result_samples_per_second", "throughput", "samples/s", 1.0),
}
"""Main result of each scenario: key in LoadGen's log, text, unit, and factor."""


class ScenarioFacts(Frozen):
    """The result of one scenario."""

    scenario: str
    mode: str
    valid: bool
    unmet_conditions: tuple[str, ...] = Field(description="conditions of a valid run that were not met, from LoadGen")
    metric: str
    value: Number
    unit: str
    scores: Scores | None = Field(description="accuracy mode only")
    figures: JsonObject = Field(description="every result of LoadGen's detailed log")


class LoadGenFacts(Facts):
    """The results of all scenarios."""

    results: tuple[ScenarioFacts, ...]


@stage(measured=True)
def loadgen(
    config: tuple[Scenario, ...],
    workspace: Workspace,
    *,
    model: Artifact,
    test: Artifact,
    golden: Artifact,
    target: Target | None = None,
) -> Report[LoadGenFacts]:
    """Run each scenario in a child process: LoadGen has global state, and can hang.

    `test` holds the samples and `golden` their labels. The target, by default ONNX Runtime on the CPU, must run in this
    environment.

    Raises:
        StageError: when a process crashed, hung or left no result.
    """
    split, reference = read_split(workspace.path(test)), Golden.load(workspace.path(golden))
    inputs = workspace.folder / "inputs.npz"
    count = len(split) if any(s.mode == "accuracy" for s in config) else MAX_IN_MEMORY
    write_arrays(inputs, split.take(slice(0, count)))
    results, checks, artifacts = [], [], {}
    for number, scenario in enumerate(config):
        folder = workspace.folder / f"{number}-{scenario.scenario}-{scenario.mode}"
        folder.mkdir(exist_ok=True)
        job = LoadGenJob(scenario, scenario.threads or usable_threads(), (target or OrtCpu()).options())
        path, seconds = workspace.path(model), scenario.timeout_s
        try:
            run_in_subprocess(run_scenario, job, path, inputs, folder, timeout_s=seconds, memory_bytes=MEMORY_BYTES)
        except SubprocessFailed as error:
            raise StageError(f"LoadGen, {scenario.scenario}: {error}") from error
        scores = score_outputs(folder, reference) if scenario.mode == "accuracy" else None
        results.append(_facts(scenario, figures(folder), scores))
        checks.append(_check(scenario, results[-1]))
        artifacts[f"log_{number}"] = workspace.store_file(folder / "mlperf_log_detail.txt")
        workspace.progress(number + 1, len(config), "scenario")
    facts = LoadGenFacts(results=tuple(results))
    return Report(facts=facts, checks=tuple(checks), artifacts=artifacts)


def _facts(scenario: Scenario, summary: JsonObject, scores: Scores | None) -> ScenarioFacts:
    key, text, unit, factor = METRIC[scenario.scenario]
    if scores:
        text, unit = "accuracy", ""
        value = scores.accuracy if scores.accuracy is not None else scores.top1_agreement
    else:
        value = float(str(summary.get(key, "nan"))) * factor
    return ScenarioFacts(
        scenario=scenario.scenario,
        mode=scenario.mode,
        valid=scores is not None or summary.get("result_validity") == "VALID",  # LoadGen judges only performance
        unmet_conditions=unmet_conditions(summary),
        metric=text.format(samples=scenario.batch),
        value=value,
        unit=unit,
        scores=scores,
        figures=json.loads(json.dumps(summary)),
    )


def _check(scenario: Scenario, facts: ScenarioFacts) -> Check:
    result = f"{facts.scenario}: {facts.metric} {facts.value:.4g} {facts.unit}".rstrip()
    if facts.scores is not None:
        detail = f"{result}, over {facts.scores.samples} samples"
        fix = "check that the model and its inputs are those that passed the accuracy stage"
        return Check.of("loadgen.min_accuracy", facts.value, ">=", scenario.min_accuracy, detail, fix)
    detail = result if facts.valid else f"{result}; LoadGen says INVALID: {', '.join(facts.unmet_conditions)}"
    return Check.of("loadgen.valid", float(facts.valid), "==", 1, detail, "raise min_duration_s, or lower target_qps")


CONFIG = Field((), description="scenarios of MLPerf's LoadGen on the winner; a gate")
LOADGEN = ShippingStage(loadgen, "winner", tuple[Scenario, ...], CONFIG, {"mlperf_loadgen": "loadgen"})
"""The object of the entry point `shipping.loadgen`."""
