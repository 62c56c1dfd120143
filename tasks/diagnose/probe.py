"""The second half of a diagnosis, in a fresh child process: what happens when the model is loaded and called."""

from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from pydantic import Field

from tasks.diagnose import batch, first_call, operators
from tasks.diagnose.clues import Arrays, Clues, read_clues
from tasks.diagnose.feeds import Feeder, attempts
from tasks.diagnose.finding import Evidence, Fault, Finding, Timing
from tasks.errors import StageError
from tasks.frozen import Frozen
from tasks.runtime.graph import one_line
from tasks.runtime.session import open_session
from tasks.runtime.threads import usable_threads

THREADS = 4
"""At the most: each one reserves addresses, of which the process has a limited amount."""
BATCHES = (1, 2, 3)
STEADY_CALLS = 20
STEADY_S = 0.5
SLOW_CALL_S = 1.0
"""A model whose call takes longer is not called at further batch sizes."""


class Probe(Frozen):
    """What was seen."""

    findings: tuple[Finding, ...] = ()
    unchecked: dict[Fault, str] = Field(default_factory=dict)
    timing: Timing | None = None
    batches: tuple[int, ...] = ()


def probe(path: Path, evidence: Evidence) -> Probe:
    """Load the model, call it, call it again, and call it with other batch sizes."""
    clues = read_clues(path, evidence)
    start = perf_counter()
    try:
        session = open_session(path, threads=threads())
    except StageError as error:
        return Probe(findings=(refused(one_line(error)),), unchecked=unrun("the runtime refuses the model"))
    session_ms = 1e3 * (perf_counter() - start)
    try:
        size, feed, first_call_ms = _first_call(session, clues)
    except _NoCall as error:
        return Probe(findings=error.findings, unchecked=unrun(str(error)))
    timing = Timing(session_ms=session_ms, first_call_ms=first_call_ms, steady_ms=_steady_ms(session, feed))
    if first_call.is_slow(timing):  # a busy machine looks the same, but hardly twice
        timing = _measured_again(path, feed, timing)
    runs = _run_batches(session, clues, size, first_call_ms)
    found = (first_call.find(timing), batch.find_hidden(clues, runs))
    return Probe(findings=tuple(f for f in found if f is not None), timing=timing, batches=tuple(sorted(runs.shapes)))


def threads() -> int:
    """Return how many threads a session in a child may have."""
    return min(THREADS, usable_threads())


def refused(complaint: str) -> Finding:
    """Return the finding for a model that the runtime does not load."""
    if "NOT_IMPLEMENTED" in complaint:
        return operators.without_kernel(complaint)
    return Finding(fault="unrunnable", cause=complaint, fix="export it again; see the message", fixable=False)


class _NoCall(Exception):  # noqa: N818 - not an error: some models cannot be called by a stranger
    def __init__(self, reason: str, *findings: Finding) -> None:
        super().__init__(reason)
        self.findings = findings


def _first_call(session: Any, clues: Clues) -> tuple[int, Arrays, float]:
    """Return the size of the free axes with which the model runs, that call's inputs, and its milliseconds."""
    complaint = ""
    feeder = Feeder.of(clues.graph, clues.data)
    sizes = feeder.fitting_sizes()
    for wanted in (1, *(batch.hidden_sizes(clues.graph) if feeder.takes_batches else ())):
        try:
            for size, feed in attempts(feeder, wanted):
                start = perf_counter()
                try:
                    session.run(None, feed)
                except Exception as error:  # the runtime's own exceptions share no public base
                    complaint = complaint or one_line(error)
                    continue
                return size, feed, 1e3 * (perf_counter() - start)
        except StageError as error:
            raise _NoCall(str(error), _fails(str(error))) from error
        except (TypeError, ValueError) as error:  # a type that numpy does not have
            raise _NoCall(f"no inputs can be made for it: {one_line(error)}") from error
    if len(sizes) > 1:
        raise _NoCall(f"it runs with none of the sizes {sizes} on its free axes; give --data FILE.npz")
    raise _NoCall("the runtime fails on inputs of the declared shape", _fails(f"ONNX Runtime fails: {complaint}"))


def _fails(cause: str) -> Finding:
    return Finding(
        fault="unrunnable", cause=cause, fix="give real inputs with --data FILE.npz, or export it again", fixable=False
    )


def unrun(reason: str) -> dict[Fault, str]:
    """Return what cannot be looked for in a model that does not run."""
    return {"slow_first_call": reason, "frozen_batch": f"only by the declared shapes; {reason}"}


def _steady_ms(session: Any, feed: Arrays) -> float:
    samples: list[float] = []
    end = perf_counter() + STEADY_S
    while len(samples) < STEADY_CALLS and (not samples or perf_counter() < end):
        start = perf_counter()
        session.run(None, feed)
        samples.append(1e3 * (perf_counter() - start))
    return median(samples)


def _measured_again(path: Path, feed: Arrays, was: Timing) -> Timing:
    start = perf_counter()
    session = open_session(path, threads=threads())
    session_ms = 1e3 * (perf_counter() - start)
    start = perf_counter()
    session.run(None, feed)
    first_call_ms = 1e3 * (perf_counter() - start)
    again = Timing(session_ms=session_ms, first_call_ms=first_call_ms, steady_ms=was.steady_ms)
    return min(was, again, key=lambda timing: timing.first_answer_ms)


def _run_batches(session: Any, clues: Clues, size: int, first_call_ms: float) -> batch.Runs:
    """Call the model with several batch sizes; where the smallest fails, look for one that hides in the graph."""
    runs = batch.Runs()
    feeder = Feeder.of(clues.graph, clues.data)
    if not feeder.takes_batches:
        return runs
    names = [output.name for output in session.get_outputs()]

    def call(count: int) -> None:
        try:
            values = session.run(names, feeder.feed(count, size))
        except Exception as error:  # a complaint is what is looked for
            runs.complaints[count] = one_line(error)
        else:
            runs.shapes[count] = {n: v.shape for n, v in zip(names, values, strict=True) if hasattr(v, "shape")}

    for count in BATCHES if first_call_ms < 1e3 * SLOW_CALL_S else BATCHES[:2]:
        call(count)
    if 1 in runs.complaints:
        for count in batch.hidden_sizes(clues.graph):
            if count not in BATCHES:
                call(count)
    return runs
