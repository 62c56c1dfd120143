"""A pass as a transaction: applied to a copy, which is kept only if it is valid, accurate and not slower.

This runs in a subprocess, which stores its progress in a file: the parent continues after a pass that ended it.
"""

import math
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from operator import attrgetter
from pathlib import Path
from time import monotonic, perf_counter
from typing import Literal, Self

import numpy as np
import onnx
from pydantic import Field
from scipy.special import bdtr

from gauntlet.core.arrays import NamedArrays
from gauntlet.core.artifact import write_atomically
from gauntlet.core.errors import StageError, one_line
from gauntlet.core.frozen import Frozen, Number
from gauntlet.core.signature import Signature
from gauntlet.datasets.golden import Golden, GoldenCase
from gauntlet.metrics.output_comparison import Tolerances, compare_outputs, own_outputs
from gauntlet.onnx_model.graph import format_type, required_inputs
from gauntlet.onnx_model.model_file import checker_error, model_files, read_graph
from gauntlet.runtime.batched_inference import batched_inference
from gauntlet.runtime.graph_fingerprint import graph_fingerprint, optimized_graph_fingerprint
from gauntlet.runtime.session import open_session
from gauntlet.runtime.timing import time_calls
from tasks.optimize.graph_pass import GraphPass, apply_pass, layout_nodes
from tasks.optimize.in_memory_pass import InMemoryPass

PassFailure = Literal["", "fails", "invalid", "wrong", "crash"]
"""How a pass broke the model; empty if it did not."""

PASS = "pass-"  # prefix of the files that passes write


class PassFacts(Frozen):
    """The result of one pass, or of a group of passes."""

    name: str
    outcome: Literal["accepted", "unchanged", "rejected", "split", "not tried"] = Field(
        description="unchanged: it changed nothing; split: it broke the model, its halves were tried; not tried: late"
    )
    reason: str = ""
    broke: PassFailure = Field("", description="how the pass broke the model; empty if it did not")
    nodes_before: int
    nodes_after: int | None = Field(None, description="None without a result")
    seconds: Number = Field(0.0, description="duration of the pass, without its verification")
    max_abs_error: Number | None = Field(None, description="difference from the model before the chain")
    speed: Number | None = Field(None, description="in multiples of the speed before the pass; None if not measured")
    speed_low: Number | None = None
    speed_high: Number | None = None
    timed: bool = Field(False, description="whether a clock decided: it is slower, or timed out")


class ChainState(Frozen):
    """The progress of a chain."""

    pending: tuple[GraphPass, ...]
    steps: tuple[PassFacts, ...] = ()
    model: str = Field(description="file of the last accepted model, in the chain's folder")

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read what `write` wrote."""
        return cls.model_validate_json((folder / "state.json").read_bytes())

    def write(self, folder: Path) -> None:
        """Write the state atomically."""
        write_atomically(folder / "state.json", self.model_dump_json())

    def after(self, facts: PassFacts, model: str | None = None) -> Self:
        """Return the state after the first pending pass; a group that broke the model is followed by its halves."""
        tried, rest = self.pending[0], self.pending[1:]
        parts = tried.halves() if facts.broke else ()
        facts = facts.replace(outcome="split") if parts else facts
        return self.replace(pending=(*parts, *rest), steps=(*self.steps, facts), model=model or self.model)

    def tidy(self, folder: Path) -> None:
        """Remove results that are no longer needed, which may be gigabytes."""
        needed = {*model_files(folder / self.model)}  # also weights of an earlier pass
        for file in {*folder.glob(f"{PASS}*")} - needed:
            file.unlink()


def try_pending_passes(
    folder: Path, golden: Path, numerics: Tolerances, max_slowdown: float, timeout_s: float, ends_at: float = math.inf
) -> None:
    """Try the pending passes in order, and record each; behind `ends_at`, by `time.monotonic`, begin no further one.

    A pass that exceeds its time limit ends this process, because a library call cannot be interrupted otherwise. After
    splitting a group the function returns: the time limit of the process covers the passes pending at its start.
    """
    state, parent = ChainState.read(folder), os.getppid()
    verifier = PassVerifier.from_model(folder / "original.onnx", golden, numerics, max_slowdown)
    while state.pending:
        signal.setitimer(signal.ITIMER_REAL, timeout_s)
        destination = folder / f"{PASS}{len(state.steps)}-{os.getpid()}.onnx"
        facts = verifier.verify(state.pending[0], folder / state.model, destination)
        if os.getppid() != parent:  # the parent was killed, and another process may use this folder
            return
        state = state.after(facts, destination.name if facts.outcome == "accepted" else None)
        state.write(folder)
        state.tidy(folder)
        if state.steps[-1].outcome == "split" or monotonic() >= ends_at:
            return


@dataclass(frozen=True)
class PassVerifier:
    """Verifies passes against the outputs of the model before the chain."""

    cases: dict[str, GoldenCase]
    numerics: Tolerances
    max_slowdown: float
    signature: Signature | None

    @classmethod
    def from_model(cls, original: Path, golden: Path, numerics: Tolerances, max_slowdown: float) -> Self:
        """Run the model before the chain on the golden inputs."""
        cases = own_outputs(open_session(original), Golden.load(golden).cases, numerics.samples)
        return cls(cases, numerics, max_slowdown, Signature.find(read_graph(original)))

    def verify(self, graph_pass: GraphPass, model: Path, destination: Path) -> PassFacts:
        """Apply one pass, and accept or reject the result."""
        before, start = read_graph(model), perf_counter()
        facts = PassFacts(name=graph_pass.name, outcome="rejected", nodes_before=len(before.graph.node))
        if isinstance(graph_pass, InMemoryPass) and all(node.domain == "ai.onnx.ml" for node in before.graph.node):
            return facts.replace(outcome="unchanged", reason="all operators are of ai.onnx.ml")  # as CatBoost's are
        try:
            after = apply_pass(graph_pass, model, destination)
        except MemoryError:
            raise
        except Exception as error:  # passes may raise anything
            return facts.replace(broke="fails", reason=f"it fails: {type(error).__name__}: {one_line(error)}")
        facts = facts.replace(nodes_after=len(after.graph.node), seconds=perf_counter() - start)
        if graph_fingerprint(before, model.parent) == graph_fingerprint(after, destination.parent):
            why = graph_pass.if_unchanged if isinstance(graph_pass, InMemoryPass) else ""
            return facts.replace(outcome="unchanged", reason=why)
        if layout_nodes(after) > layout_nodes(before):
            return facts.replace(reason=f"{layout_nodes(after)} nodes have a layout specific to this processor")
        if invalid := validity_error(before, after, destination):
            return facts.replace(broke="invalid", reason=invalid)
        facts = self._compare(facts, destination)
        return facts if facts.broke else self._check_latency(facts, model, destination)

    def _compare(self, facts: PassFacts, model: Path) -> PassFacts:
        try:
            comparison = compare_outputs(self.numerics, open_session(model), self.cases, self.signature)
        except StageError as error:
            return facts.replace(broke="invalid", reason=one_line(error))
        facts, fault = facts.replace(max_abs_error=comparison.max_abs_error), comparison.fault(self.numerics)
        return facts.replace(broke="wrong", reason=fault) if fault else facts

    def _check_latency(self, facts: PassFacts, before: Path, after: Path) -> PassFacts:
        if _optimized_fingerprint(before) == _optimized_fingerprint(after):
            return facts.replace(outcome="accepted", reason="the runtime optimizes it to the same graph as before")
        inputs = next(iter(self.cases.values())).inputs
        speed, low, high = speed_ratio(before, after, inputs)
        if high < 1 - self.max_slowdown:  # once more, in new sessions: other work may have slowed one of these
            speed, low, high = max((speed, low, high), speed_ratio(before, after, inputs))
        facts = facts.replace(speed=speed, speed_low=low, speed_high=high)
        if high < 1 - self.max_slowdown:
            return facts.replace(timed=True, reason=f"slower: {speed:.2f}x the speed [{low:.2f}, {high:.2f}]")
        return facts.replace(outcome="accepted")


_optimized_fingerprint = lru_cache(maxsize=2)(optimized_graph_fingerprint)  # a pass' result is the next one's input


def validity_error(before: onnx.ModelProto, after: onnx.ModelProto, path: Path) -> str:
    """Return why the result is not valid ONNX with the same inputs and outputs; empty if it is."""
    for kind, old, new in (
        ("inputs", required_inputs(before.graph), required_inputs(after.graph)),
        ("outputs", before.graph.output, after.graph.output),
    ):
        for read in (attrgetter("name"), lambda value: format_type(value).partition("[")[0]):
            were, are = ([read(value) for value in values] for values in (old, new))
            if were != are:
                return f"it changes the {kind} from {were} to {are}"
    error = checker_error(path)
    return f"not valid ONNX: {error}" if error else ""


ROUNDS = 9
"""Timed blocks of each model; a 95 % interval needs at least 6."""
BLOCK_MS = 15.0


def speed_ratio(before: Path, after: Path, inputs: NamedArrays) -> tuple[float, float, float]:
    """Return the speed of `after` in multiples of `before`: the median over rounds, and its 95 % interval.

    Both sessions alternate in this process, with one thread each: idle threads of one would spin on the cores where the
    other is timed. The interval inverts the sign test, without an assumption about the noise (Hahn and Meeker,
    Statistical Intervals, 1991, section 5.2).
    """
    runners = [_runner(path, inputs) for path in (before, after)]
    for run in runners:
        time_calls(run, BLOCK_MS)
    ratios: list[float] = []
    for number in range(ROUNDS):
        order = (0, 1) if number % 2 == 0 else (1, 0)
        medians = {index: np.median(time_calls(runners[index], BLOCK_MS)[0]) for index in order}
        ratios.append(medians[0] / medians[1])
    ratios.sort()
    cut = _outer(ROUNDS)
    return float(np.median(ratios)), ratios[cut], ratios[-1 - cut]


def _outer(rounds: int) -> int:
    """Return how many of the lowest and of the highest values lie outside the 95 % interval of the median."""
    return next(outside for outside in range(rounds) if bdtr(outside + 1, rounds, 0.5) > 0.025)


def _runner(model: Path, inputs: NamedArrays) -> Callable[[], object]:
    prepared = batched_inference(open_session(model, threads=1), inputs)
    return partial(prepared.session.run, None, prepared.feed(0, prepared.batch(1)))
