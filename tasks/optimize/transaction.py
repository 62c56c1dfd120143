"""A pass as a transaction: applied to a copy, and taken only when the copy is valid, right, and not slower.

All of this runs in a process apart. What it has done stands in a file, so that whoever started it knows which pass
ended it, and can go on behind that pass.
"""

import os
import signal
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Literal, Self

import numpy as np
import onnx
from pydantic import Field

from tasks.agreement import NumericsConfig, agreement
from tasks.artifact import write_whole
from tasks.data.golden import Case, Golden, head
from tasks.errors import StageError
from tasks.frozen import Frozen, Number
from tasks.model_file import files_of, read_graph
from tasks.optimize.graph_pass import GraphPass, apply_pass, halves, layout_nodes
from tasks.optimize.pace import Pace, relative_speed
from tasks.runtime.calls import calls
from tasks.runtime.fingerprint import fingerprint, runs_as
from tasks.runtime.graph import one_line, required_inputs
from tasks.runtime.session import open_session

Kind = Literal["", "fails", "invalid", "wrong", "crash"]
"""In which way a pass broke the model, if it did."""


PASS = "pass-"
"""Begins the names of the files that passes write."""


class PassFacts(Frozen):
    """What became of one pass, or of a group of them."""

    name: str
    outcome: Literal["accepted", "unchanged", "rejected", "split"] = Field(
        description="unchanged: it found nothing to do; split: the group broke the model, and its halves were tried"
    )
    reason: str = ""
    broke: Kind = Field("", description="how it broke the model; empty where it did not")
    nodes_before: int
    nodes_after: int | None = Field(None, description="None where there is no result")
    seconds: Number = Field(0.0, description="of the pass alone, without the proof")
    max_abs_error: Number | None = Field(None, description="against the model before the chain")
    speed: Number | None = Field(None, description="in multiples of the speed before; None where it was not measured")
    speed_low: Number | None = None
    speed_high: Number | None = None
    first_divergence: str | None = None
    nodes: tuple[str, ...] = Field((), description="the smallest part of the graph that it breaks")
    artifact: str | None = Field(None, description="which of the stage's artifacts reproduces it")


class Step(Frozen):
    """A pass that was tried: what became of it, and on which file."""

    graph_pass: GraphPass
    source: str
    facts: PassFacts


class State(Frozen):
    """How far a chain is."""

    pending: tuple[GraphPass, ...]
    steps: tuple[Step, ...] = ()
    model: str = Field(description="file of the last accepted model, in the chain's folder")

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read what `write` wrote."""
        return cls.model_validate_json((folder / "state.json").read_bytes())

    def write(self, folder: Path) -> None:
        """Write it down, whole or not at all."""
        write_whole(folder / "state.json", self.model_dump_json())

    def after(self, facts: PassFacts, model: str | None = None) -> Self:
        """Return the state behind the first pending pass; a group that broke the model is followed by its halves."""
        tried, rest = self.pending[0], self.pending[1:]
        parts = halves(tried) if facts.broke else ()
        facts = facts.replace(outcome="split") if parts else facts
        step = Step(graph_pass=tried, source=self.model, facts=facts)
        return self.replace(pending=(*parts, *rest), steps=(*self.steps, step), model=model or self.model)

    def tidy(self, folder: Path) -> None:
        """Remove the results that nobody needs: a model may have gigabytes. What a broken pass was given is needed."""
        models = (self.model, *(step.source for step in self.steps if step.facts.broke))
        needed = {file for name in models for file in files_of(folder / name)}  # weights may be an earlier pass's
        for file in folder.glob(f"{PASS}*"):
            if file not in needed:
                file.unlink()


class Terms(Frozen):
    """What a pass must keep to."""

    numerics: NumericsConfig
    pace: Pace
    timeout_s: float


def proceed(folder: Path, golden: Path, terms: Terms) -> None:
    """Try the pending passes, one after the other, and write down each.

    A pass that takes too long ends this process: nothing else can interrupt a library. Behind a group that broke the
    model it returns, for its time is that of the passes that were pending, and now there are more.
    """
    state, parent = State.read(folder), os.getppid()
    proof = Proof.of(folder / "original.onnx", golden, terms)
    while state.pending:
        signal.setitimer(signal.ITIMER_REAL, terms.timeout_s)
        target = folder / f"{PASS}{len(state.steps)}-{os.getpid()}.onnx"
        facts = proof.attempt(state.pending[0], folder / state.model, target)
        if os.getppid() != parent:  # it was killed, and another one may be at work in this folder
            return
        state = state.after(facts, target.name if facts.outcome == "accepted" else None)
        state.write(folder)
        state.tidy(folder)
        if state.steps[-1].facts.outcome == "split":
            return


@dataclass
class Proof:
    """What the model before the chain answers, and the comparison with it."""

    cases: dict[str, Case]
    terms: Terms
    contents: dict[Path, str] = field(default_factory=dict)
    """The digests of the models seen so far."""
    graphs: dict[Path, str] = field(default_factory=dict)
    """What the runtime makes of them."""

    @classmethod
    def of(cls, original: Path, golden: Path, terms: Terms) -> Self:
        """Ask the model before the chain."""
        session = open_session(original)
        asked = {t: head(c.inputs, terms.numerics.samples) for t, c in Golden.load(golden).cases.items()}
        size = terms.numerics.samples
        return cls({title: Case(inputs, calls(session, inputs).run(size)) for title, inputs in asked.items()}, terms)

    def attempt(self, graph_pass: GraphPass, source: Path, target: Path) -> PassFacts:
        """Apply one pass and judge it."""
        before, start = read_graph(source), perf_counter()
        facts = PassFacts(name=graph_pass.name, outcome="rejected", nodes_before=len(before.graph.node))
        try:
            after = apply_pass(graph_pass, source, target)
        except MemoryError:
            raise
        except Exception as error:  # passes raise what they like
            return facts.replace(broke="fails", reason=f"it fails: {type(error).__name__}: {one_line(error)}")
        facts = facts.replace(nodes_after=len(after.graph.node), seconds=perf_counter() - start)
        self.contents[source] = self.contents.get(source) or fingerprint(before, source.parent)
        self.contents[target] = fingerprint(after, target.parent)
        if self.contents[target] == self.contents[source]:
            return facts.replace(outcome="unchanged")
        if layout_nodes(after) > layout_nodes(before):
            return facts.replace(reason=f"{layout_nodes(after)} nodes are laid out for this processor alone")
        invalid = complaint(before, after, target)
        if invalid:
            return facts.replace(broke="invalid", reason=invalid)
        try:
            found = agreement(self.terms.numerics, open_session(target), self.cases)
        except StageError as error:
            return facts.replace(broke="invalid", reason=one_line(error))
        errors = [row.max_abs_error for row in found.rows]
        facts = facts.replace(max_abs_error=float(np.max(errors)) if errors else None)
        wrong = next((row for row in found.rows if not row.within(self.terms.numerics)), None)
        if found.complaints:
            return facts.replace(broke="wrong", reason=found.complaints[0])
        if wrong:
            reason = f"'{wrong.output}' changes by {facts.max_abs_error:.3g} ({wrong.data} inputs, batch {wrong.batch})"
            return facts.replace(broke="wrong", reason=reason)
        return self._pace(facts, source, target)

    def _pace(self, facts: PassFacts, source: Path, target: Path) -> PassFacts:
        for model in (source, target):
            self.graphs[model] = self.graphs.get(model) or runs_as(model)
        if self.graphs[source] == self.graphs[target]:
            return facts.replace(outcome="accepted", reason="the runtime makes the same graph of it as before")
        pace, inputs = self.terms.pace, next(iter(self.cases.values())).inputs
        speed, low, high = relative_speed(pace, source, target, inputs)
        facts = facts.replace(speed=speed, speed_low=low, speed_high=high)
        if high < 1 - pace.max_slowdown:
            return facts.replace(reason=f"slower: {speed:.2f}x the speed [{low:.2f}, {high:.2f}]")
        return facts.replace(outcome="accepted")


def complaint(before: onnx.ModelProto, after: onnx.ModelProto, path: Path) -> str:
    """Return what makes the result no model in the old one's place, or nothing."""
    for told, was, now in (
        ("inputs", required_inputs(before.graph), required_inputs(after.graph)),
        ("outputs", before.graph.output, after.graph.output),
    ):
        if _names(was) != _names(now):
            return f"it changes the {told} from {_names(was)} to {_names(now)}"
    try:
        onnx.checker.check_model(str(path), full_check=True)
    except Exception as error:  # the checker and shape inference raise many types
        return f"not valid ONNX: {one_line(error)}"
    return ""


def _names(values: Iterable[onnx.ValueInfoProto]) -> list[str]:
    return [value.name for value in values]
