"""A chain of passes: each is kept only if the model stays valid, accurate and not slower."""

import math
import shutil
from pathlib import Path
from time import monotonic
from typing import Literal

from pydantic import Field

from gauntlet.core.artifact import Artifact
from gauntlet.core.errors import PipelineError, StageError
from gauntlet.core.frozen import Frozen
from gauntlet.core.workspace import Workspace
from gauntlet.metrics.output_comparison import Tolerances
from gauntlet.onnx_model.model_file import copy_model, is_large_file, read_graph
from gauntlet.runtime.subprocess_runner import SubprocessFailed, run_in_subprocess
from tasks.optimize.graph_pass import GraphPass
from tasks.optimize.latency_check import LatencyCheck
from tasks.optimize.onnxoptimizer import OnnxOptimizer
from tasks.optimize.onnxscript import OnnxScript
from tasks.optimize.onnxsim import OnnxSim
from tasks.optimize.onnxslim import OnnxSlim
from tasks.optimize.ort import OrtGraph
from tasks.optimize.python_pass import PythonPass
from tasks.optimize.reduce_failing_model import FailingModel, ReductionSettings, reduce_failing_model
from tasks.optimize.verified_pass import ChainState, PassAttempt, PassFacts, try_pending_passes

NOT_TRIED = "not tried: "
"""The reason of passes whose turn comes when the time is used up."""
LEAST_TIMEOUT_S = 30
"""A pass is given this time also where the budget is smaller."""
TRY_S = 10  # time limit, in seconds, of a pass on one part of a model on which it crashed or timed out


class Chain(Frozen):
    """Graph passes as transactions in a subprocess: a pass that crashes or hangs is dropped like any that fails.

    The default passes write standard ONNX; `{kind: ort, level: extended}` adds ONNX Runtime's own operators.
    """

    kind: Literal["chain"] = "chain"
    name: str = Field("passes", pattern=r"^[a-z0-9][a-z0-9-]*$", description="name of the candidate")
    passes: tuple[GraphPass, ...] = Field(
        (OnnxSim(), OnnxSlim(), OnnxScript(), OnnxOptimizer(), OrtGraph(level="basic")),
        min_length=1,
        description="applied in this order; each gets the model after the accepted ones before it",
    )
    samples: int = Field(8, ge=1, description="number of real and of random samples to compare after each pass")
    latency_check: LatencyCheck = Field(default_factory=LatencyCheck)
    timeout_s: float = Field(120, gt=0, description="a pass that takes longer, verification included, is dropped")
    reduction_budget_s: float = Field(60, ge=0, description="time to reduce one failing model; 0: no reduction")
    memory_gb: float = Field(8, ge=1, description="memory limit of the process that applies the passes")

    @property
    def memory_bytes(self) -> int:
        """The memory limit in bytes."""
        return round(self.memory_gb * 1e9)

    def files(self) -> tuple[Path, ...]:
        """Return the user's files that implement the passes."""
        return tuple(file for p in self.passes if isinstance(p, PythonPass) for file in p.files())

    def run(
        self, workspace: Workspace, model: Path, golden: Path, numerics: Tolerances, budget_s: float | None = None
    ) -> tuple[Path, tuple[PassFacts, ...], dict[str, Artifact]]:
        """Apply the passes; return the model after the last accepted one, the facts of each, and the failing models.

        With a budget, a pass whose turn comes later is not tried, except the first, and none may take much longer.

        Raises:
            StageError: when the model does not run before the first pass.
        """
        numerics, folder = numerics.replace(samples=self.samples), workspace.folder / "chain"
        ends_at = math.inf if budget_s is None else monotonic() + budget_s
        timeout_s = self.timeout_s if budget_s is None else min(self.timeout_s, max(budget_s, LEAST_TIMEOUT_S))
        arguments, memory = (folder, golden, numerics, self.latency_check, timeout_s, ends_at), self.memory_bytes
        if not (folder / "state.json").exists():
            folder.mkdir(exist_ok=True)
            copy_model(model, folder / "original.onnx")
            ChainState(pending=self.passes, model="original.onnx").write(folder)
        while (state := ChainState.read(folder)).pending:
            workspace.progress(len(state.steps), len(state.steps) + len(state.pending), "pass")
            if state.steps and monotonic() >= ends_at:
                _record_untried(folder, budget_s)
                break
            limit_s = timeout_s * (len(state.pending) + 1)
            try:
                run_in_subprocess(try_pending_passes, *arguments, timeout_s=limit_s, memory_bytes=memory)
            except SubprocessFailed as failure:
                _record_crash(folder, failure, timeout_s)
        state = ChainState.read(folder)
        facts, artifacts = list[PassFacts](), dict[str, Artifact]()
        for step in state.steps:
            in_time = self.replace(reduction_budget_s=max(0.0, min(self.reduction_budget_s, ends_at - monotonic())))
            step_facts, step_artifacts = in_time._with_failing_model(step, workspace, folder, golden, numerics)
            facts.append(step_facts)
            artifacts |= step_artifacts
        return folder / state.model, tuple(facts), artifacts

    def _with_failing_model(
        self, step: PassAttempt, workspace: Workspace, folder: Path, golden: Path, numerics: Tolerances
    ) -> tuple[PassFacts, dict[str, Artifact]]:
        """Return the facts of a pass; for one that broke the model, also the smallest model that it breaks."""
        facts = step.facts
        if not facts.broke or facts.outcome == "split" or not self.reduction_budget_s:
            return facts, {}
        if is_large_file(folder / step.source):  # each trial would write gigabytes
            return facts.replace(reason=f"{facts.reason}; not reduced: the model is larger than 2 GB"), {}
        reduced = workspace.folder / "failing"
        shutil.rmtree(reduced, ignore_errors=True)
        reduced.mkdir()
        try:
            failing = self._reduce(step, folder / step.source, golden, numerics, reduced)
        except PipelineError as error:  # the pass stays rejected
            return facts.replace(reason=f"{facts.reason}; no smaller failing model was found: {error}"), {}
        if failing is None:
            return facts.replace(reason=f"{facts.reason}; the failure was not reproduced on single calls"), {}
        name = f"failing-{facts.name}"
        facts = facts.replace(nodes=failing.nodes, first_divergence=failing.first_divergence, artifact=name)
        return facts, {name: workspace.store_file(*failing.files)}

    def _reduce(
        self, step: PassAttempt, model: Path, golden: Path, numerics: Tolerances, destination: Path
    ) -> FailingModel | None:
        """Reduce the failing model of a pass in a subprocess; after a crash, each trial gets a subprocess instead."""
        settings = ReductionSettings(
            graph_pass=step.graph_pass,
            kind=step.facts.broke,
            numerics=numerics,
            budget_s=self.reduction_budget_s,
            try_s=min(self.timeout_s, TRY_S),
            memory_bytes=self.memory_bytes,
        )
        arguments, limit_s = (settings, model, golden, destination), self.reduction_budget_s + self.timeout_s
        if settings.kind == "crash":
            return reduce_failing_model(*arguments)
        memory = self.memory_bytes
        return run_in_subprocess(reduce_failing_model, *arguments, timeout_s=limit_s, memory_bytes=memory).value


def _record_untried(folder: Path, budget_s: float | None) -> None:
    """Record that the time is used up before the turn of the pending passes."""
    state = ChainState.read(folder)
    nodes = len(read_graph(folder / state.model).graph.node)
    reason = f"{NOT_TRIED}the time for graph passes, {budget_s:g} s, was used up"
    for graph_pass in state.pending:
        facts = PassFacts(name=graph_pass.name, outcome="rejected", reason=reason, nodes_before=nodes, timed=True)
        state = state.after(facts)
    state.write(folder)


def _record_crash(folder: Path, failure: SubprocessFailed, timeout_s: float) -> None:
    """Record that the first pending pass ended the process."""
    if failure.ending == "error":  # errors of passes are caught in the subprocess; this one is not a pass's
        raise StageError(f"the passes could not run: {failure}") from failure
    state = ChainState.read(folder)
    hung = failure.ending == "time" or "signal 14" in str(failure)
    reason = f"timed out after {timeout_s:g} s" if hung else str(failure)
    nodes = len(read_graph(folder / state.model).graph.node)
    facts = PassFacts(name=state.pending[0].name, outcome="rejected", reason=reason, broke="crash", nodes_before=nodes)
    state.after(facts.replace(timed=hung)).write(folder)
