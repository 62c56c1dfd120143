"""A chain of passes: each is kept only if the model stays valid, accurate and not slower."""

import math
from pathlib import Path
from time import monotonic
from typing import Literal

from pydantic import Field

from gauntlet.core.errors import StageError
from gauntlet.core.frozen import Frozen
from gauntlet.core.kinds import kinds
from gauntlet.core.workspace import Workspace
from gauntlet.metrics.output_comparison import Tolerances
from gauntlet.onnx_model.model_file import copy_model, read_graph
from gauntlet.runtime.subprocess_runner import SubprocessFailed, run_in_subprocess
from tasks.optimize.base import Pass
from tasks.optimize.graph_pass import GraphPass, OrtGraph
from tasks.optimize.verified_pass import ChainState, PassFacts, try_pending_passes

SAMPLES = 8
"""Real and random samples, of each so many, to compare after each pass."""
MEMORY_BYTES = 8_000_000_000
"""Of the process that applies the passes."""
MIN_TIMEOUT_S = 30
"""A pass is given this time also where the budget is smaller."""
DEFAULT = ("onnxsim", "fold-affine", "onnxslim", "onnxscript", "onnxoptimizer", "pad-channels")
"""The passes of a chain, as far as they are installed; ONNX Runtime's follows."""


def default_passes() -> tuple[Pass, ...]:
    """Return the passes of a chain without `passes`."""
    installed = kinds("pass")
    return (*(installed[name]() for name in DEFAULT if name in installed), OrtGraph(level="basic"))


class Chain(Frozen):
    """Graph passes as transactions in a subprocess.

    The default passes write standard ONNX; `{kind: ort, level: extended}` adds ONNX Runtime's own operators.
    """

    kind: Literal["chain"] = "chain"
    name: str = Field("passes", pattern=r"^[a-z0-9][a-z0-9-]*$", description="name of the candidate")
    passes: tuple[GraphPass, ...] = Field(
        default_factory=default_passes, min_length=1, description="applied in this order"
    )
    max_slowdown: float = Field(
        0.02, ge=0, lt=1, description="slowdown, shown by two 95 % intervals, above which a pass is dropped"
    )
    timeout_s: float = Field(120, gt=0, description="a pass that takes longer, verification included, is dropped")

    def files(self) -> tuple[Path, ...]:
        """Return the user's files that implement the passes."""
        return tuple(file for graph_pass in self.passes for file in graph_pass.files())

    def run(
        self, workspace: Workspace, model: Path, golden: Path, numerics: Tolerances, budget_s: float | None = None
    ) -> tuple[Path, tuple[PassFacts, ...]]:
        """Apply the passes; return the model after the last accepted one, and the facts of each.

        With a budget, a pass whose turn comes later is not tried, except the first, and none may take much longer.

        Raises:
            StageError: when the model does not run before the first pass.
        """
        numerics, folder = numerics.replace(samples=SAMPLES), workspace.folder / "chain"
        ends_at = math.inf if budget_s is None else monotonic() + budget_s
        timeout_s = self.timeout_s if budget_s is None else min(self.timeout_s, max(budget_s, MIN_TIMEOUT_S))
        arguments = (folder, golden, numerics, self.max_slowdown, timeout_s, ends_at)
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
                run_in_subprocess(try_pending_passes, *arguments, timeout_s=limit_s, memory_bytes=MEMORY_BYTES)
            except SubprocessFailed as failure:
                _record_crash(folder, failure, timeout_s)
        state = ChainState.read(folder)
        return folder / state.model, state.steps


def _record_untried(folder: Path, budget_s: float | None) -> None:
    """Record that the time is used up before the turn of the pending passes."""
    state = ChainState.read(folder)
    nodes = len(read_graph(folder / state.model).graph.node)
    reason = f"the time for graph passes, {round(budget_s or 0, 1):g} s, was used up"
    for graph_pass in state.pending:
        facts = PassFacts(name=graph_pass.name, outcome="not tried", reason=reason, nodes_before=nodes, timed=True)
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
