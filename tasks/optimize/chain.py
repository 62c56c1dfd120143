"""Several passes, one after the other: each is taken only when it is proven to help or to do no harm."""

import shutil
from pathlib import Path
from typing import Literal

from pydantic import Field

from tasks.agreement import NumericsConfig
from tasks.artifact import Artifact
from tasks.errors import PipelineError, StageError
from tasks.frozen import Frozen
from tasks.model_file import copy_model, is_large_file, read_graph
from tasks.optimize.graph_pass import GraphPass
from tasks.optimize.onnxoptimizer import OnnxOptimizer
from tasks.optimize.onnxscript import OnnxScript
from tasks.optimize.onnxsim import OnnxSim
from tasks.optimize.onnxslim import OnnxSlim
from tasks.optimize.ort import OrtGraph
from tasks.optimize.own import OwnPass
from tasks.optimize.pace import Pace
from tasks.optimize.shrink import INPUTS, MODEL, RESULT, Failing, Search, smallest
from tasks.optimize.transaction import PassFacts, State, Step, Terms, proceed
from tasks.runtime.sandbox import ChildFailed, run_apart
from tasks.workspace import Workspace

TRY_S = 10
"""How long a pass may take on a part of a model that it never came to an end with."""


class Chain(Frozen):
    """Graph passes as transactions, in a process of their own: a pass that crashes or hangs is dropped like any other.

    The default writes what any ONNX runtime can load; `{kind: ort, level: extended}` adds ONNX Runtime's own operators.
    """

    kind: Literal["chain"] = "chain"
    name: str = Field("passes", pattern=r"^[a-z0-9][a-z0-9-]*$", description="of the candidate")
    passes: tuple[GraphPass, ...] = Field(
        (OnnxSim(), OnnxSlim(), OnnxScript(), OnnxOptimizer(), OrtGraph(level="basic")),
        min_length=1,
        description="in this order; each sees what the accepted ones before it left",
    )
    samples: int = Field(8, ge=1, description="real samples to compare after each pass; as many random ones")
    pace: Pace = Field(default_factory=Pace)
    timeout_s: float = Field(120, gt=0, description="a pass that takes longer, its proof included, is dropped")
    bisect_s: float = Field(
        60, ge=0, description="how long the smallest failing model of one pass is looked for; 0: not at all"
    )
    memory_bytes: int = Field(8_000_000_000, ge=1_000_000_000, description="of the process that applies the passes")

    def files(self) -> tuple[Path, ...]:
        """Return the users' files that decide what the passes do."""
        return tuple(file for p in self.passes if isinstance(p, OwnPass) for file in p.files())

    def work_through(
        self, out: Workspace, model: Path, golden: Path, numerics: NumericsConfig
    ) -> tuple[Path, tuple[PassFacts, ...], dict[str, Artifact]]:
        """Apply the passes; return the model behind the last one, what became of each, and the failing models.

        Raises:
            StageError: when the model cannot even be asked what it answers before the first pass.
        """
        numerics = numerics.replace(samples=self.samples)
        terms = Terms(numerics=numerics, pace=self.pace, timeout_s=self.timeout_s)
        folder = out.folder / "chain"
        if not (folder / "state.json").exists():
            folder.mkdir(exist_ok=True)
            copy_model(model, folder / "original.onnx")
            State(pending=self.passes, model="original.onnx").write(folder)
        while (state := State.read(folder)).pending:
            out.progress(len(state.steps), len(state.steps) + len(state.pending), "pass")
            limit_s = self.timeout_s * (len(state.pending) + 1)
            try:
                run_apart(proceed, folder, golden, terms, timeout_s=limit_s, memory_bytes=self.memory_bytes)
            except ChildFailed as failure:
                _bury(folder, failure, self.timeout_s)
        facts, artifacts = list[PassFacts](), dict[str, Artifact]()
        for step in state.steps:
            told, found = self._examined(step, out, folder, golden, numerics)
            facts.append(told)
            artifacts |= found
        return folder / state.model, tuple(facts), artifacts

    def _examined(
        self, step: Step, out: Workspace, folder: Path, golden: Path, numerics: NumericsConfig
    ) -> tuple[PassFacts, dict[str, Artifact]]:
        """Return what is known of a step; of one that broke the model, also the smallest model that it breaks."""
        facts = step.facts
        if not facts.broke or facts.outcome == "split" or not self.bisect_s:
            return facts, {}
        if is_large_file(folder / step.source):  # each try would write gigabytes
            return facts.replace(reason=f"{facts.reason}; no smaller model was looked for: this one is above 2 GB"), {}
        room = out.folder / "failing"
        shutil.rmtree(room, ignore_errors=True)
        room.mkdir()
        crashed = facts.broke == "crash"
        search = Search(
            graph_pass=step.graph_pass,
            kind=facts.broke,
            numerics=numerics,
            budget_s=self.bisect_s,
            where="apart" if crashed else "here",
            try_s=min(self.timeout_s, TRY_S),
            memory_bytes=self.memory_bytes,
        )
        arguments = (search, folder / step.source, golden, room)
        found: Failing | None = None
        try:
            if crashed:
                found = smallest(*arguments)
            else:
                limit_s = self.bisect_s + self.timeout_s
                found = run_apart(smallest, *arguments, timeout_s=limit_s, memory_bytes=self.memory_bytes).value
        except PipelineError as error:  # the verdict on the pass stands without it
            return facts.replace(reason=f"{facts.reason}; no smaller model was found: {error}"), {}
        if found is None:
            return facts.replace(reason=f"{facts.reason}; it did not happen again on single calls"), {}
        name = f"failing-{facts.name}"
        written = [file for first in (MODEL, RESULT) for file in sorted(room.glob(f"{first}*"))]
        kept = out.keep(written[0], *written[1:], room / INPUTS)
        facts = facts.replace(nodes=found.nodes, first_divergence=found.first_divergence, artifact=name)
        return facts, {name: kept}


def _bury(folder: Path, failure: ChildFailed, timeout_s: float) -> None:
    """Write down that the first pending pass ended the process."""
    if failure.ending == "error":  # passes may raise: this was not one of them
        raise StageError(f"the passes could not be tried: {failure}") from failure
    state = State.read(folder)
    hung = failure.ending == "time" or "signal 14" in str(failure)
    reason = f"it was not done within {timeout_s:g} s" if hung else str(failure)
    nodes = len(read_graph(folder / state.model).graph.node)
    facts = PassFacts(name=state.pending[0].name, outcome="rejected", reason=reason, broke="crash", nodes_before=nodes)
    state.after(facts).write(folder)
