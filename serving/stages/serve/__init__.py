"""Serve the bundle, and prove that the service keeps its objective: a 99th percentile of the latency at a rate.

MLPerf LoadGen's Server scenario sends the requests to a real `gauntlet serve` on the loopback, with tensors of the
binary extension. A request that is refused or fails counts as infinitely late.
"""

import json
import math
from pathlib import Path

import numpy as np
from pydantic import Field

from gauntlet.bundle.bundle import Bundle
from gauntlet.core.artifact import Artifact
from gauntlet.core.errors import ConfigError, StageError
from gauntlet.core.report import Check, Report
from gauntlet.core.shipping import ShippingStage
from gauntlet.core.stage import stage
from gauntlet.core.workspace import Workspace
from gauntlet.runtime.subprocess_runner import run_in_subprocess
from serving.stages.loadgen.driver import MEMORY_BYTES, Scenario
from serving.stages.loadgen.logs import figures, unmet_conditions
from serving.stages.serve.config import Objective, ServeConfig, ServeFacts, ServingCost, Verdict
from serving.stages.serve.measurement import LoadResult, ServeJob, measure
from serving.stages.serve.percentile_interval import percentile_interval
from serving.stages.serve.server_process import running_server

PACKAGES = {"mlperf_loadgen": "loadgen", "uvicorn": "serving"}
MIN_DEADLINE_MS = 1000.0
"""What `gauntlet serve` refuses by default; a longer objective needs a longer deadline."""
PERCENTILE = 99


@stage(measured=True)
def serve(config: ServeConfig, workspace: Workspace, *, bundle: Artifact) -> Report[ServeFacts]:
    """Serve a bundle under load, with its golden inputs as requests.

    Raises:
        ConfigError: when there is no objective.
        StageError: when the server or the client cannot run or exceeds a limit.
    """
    objective = config.objective
    if objective is None:
        raise ConfigError("serve.objective: missing; give p99_ms and rate")
    opened = Bundle.open(workspace.path(bundle))
    scenario = Scenario(
        scenario="Server",
        min_duration_s=config.min_duration_s,
        min_queries=config.min_queries,
        target_qps=objective.rate,
        target_latency_ms=objective.p99_ms,
    )
    cost, load = _measure(config, scenario, opened.folder, workspace.folder)
    facts = _facts(objective, cost, load, workspace.folder)
    log = workspace.store_file(workspace.folder / "mlperf_log_detail.txt")
    return Report(facts=facts, checks=(objective_check(config, facts),), artifacts={"log": log})


def _measure(config: ServeConfig, scenario: Scenario, bundle: Path, folder: Path) -> tuple[ServingCost, LoadResult]:
    deadline_ms = max(MIN_DEADLINE_MS, scenario.target_latency_ms)
    words = ("--deadline-ms", f"{deadline_ms:g}", "--log-level", "warning")
    with running_server(bundle, folder / "server.log", *words) as server:
        job = ServeJob(server.port, bundle, scenario, config.timeout_s)
        try:
            done = run_in_subprocess(measure, job, folder, timeout_s=config.timeout_s, memory_bytes=MEMORY_BYTES)
        except StageError as error:
            server.require_alive()
            raise StageError(f"measuring gauntlet serve: {error}") from error
        server.require_alive()
    return done.value


def _facts(objective: Objective, cost: ServingCost, load: LoadResult, folder: Path) -> ServeFacts:
    latencies, summary = load.latencies_ms, figures(folder)
    p99, low, high = percentile_interval(latencies, PERCENTILE)
    return ServeFacts(
        objective=objective,
        verdict=judge(low, high, objective.p99_ms),
        requests=len(latencies),
        refused=load.refused,
        failed=load.failed,
        p50_ms=float(np.quantile(latencies, 0.5, method="inverted_cdf")),
        p99_ms=p99,
        p99_low_ms=low,
        p99_high_ms=high,
        client_delay_p99_ms=float(np.quantile(load.client_delays_ms, 0.99)),
        cost=cost,
        unmet_conditions=unmet_conditions(summary),
        figures=json.loads(json.dumps(summary)),
    )


def judge(low_ms: float, high_ms: float, limit_ms: float) -> Verdict:
    """Return what the ends of the p99's interval prove about its limit."""
    if high_ms <= limit_ms:
        return "proven within"
    return "proven beyond" if low_ms > limit_ms else "not resolved"


def objective_check(config: ServeConfig, facts: ServeFacts) -> Check:
    """Compare the upper end of the p99's interval with the objective."""
    objective, unanswered = facts.objective, facts.refused + facts.failed
    detail = f"{facts.verdict}: p99 {facts.p99_ms:.3g} ms, 95 % interval {facts.p99_low_ms:.3g} to "
    detail += f"{facts.p99_high_ms:.3g} ms, {facts.requests} requests at {objective.rate:g}/s"
    detail += f", {unanswered} of them refused or failed" if unanswered else ""
    fix = "lower serve.objective.rate, raise serve.objective.p99_ms, or choose a faster model"
    if facts.verdict == "not resolved":
        fix = "raise serve.min_duration_s and serve.min_queries, or accept it with serve.unresolved: accept"
    accepted = config.unresolved == "accept" and facts.verdict == "not resolved" and facts.p99_ms <= objective.p99_ms
    return Check.of(
        "serve.p99_ms",
        facts.p99_high_ms if math.isfinite(facts.p99_high_ms) else None,
        "<=",
        objective.p99_ms,
        detail,
        fix,
        unit="ms",
        severity="warning" if accepted else "error",
    )


CONFIG = Field(default_factory=ServeConfig)
SERVE = ShippingStage(serve, "bundle", ServeConfig, CONFIG, PACKAGES, lambda config: bool(config.objective))
"""The object of the entry point `shipping.serve`."""
