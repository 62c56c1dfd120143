"""The checks that load and call the model, in a fresh child process."""

from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import onnx
from pydantic import Field

from gauntlet.core.arrays import NamedArrays
from gauntlet.core.errors import StageError, one_line
from gauntlet.core.frozen import Frozen
from gauntlet.onnx_model.normalization.batch import constant_reshapes
from gauntlet.runtime.resources import usable_threads
from gauntlet.runtime.session import Level, open_session
from gauntlet.runtime.timing import time_calls
from wings.inspection.library.diagnosis.context import ModelContext, read_context
from wings.inspection.library.diagnosis.faults import frozen_batch, slow_first_call, unregistered_operator
from wings.inspection.library.diagnosis.findings import CallerHints, Fault, Finding, Timing

THREADS = 4
"""The most: each thread reserves address space, which is limited in the process."""
MAX_HIDDEN = 64
BATCHES = (1, 2, 3)
STEADY_CALLS = 20
STEADY_S = 0.5
SLOW_CALL_S = 1.0
"""A model whose call takes longer is called at fewer batch sizes."""


class RuntimeFindings(Frozen):
    """The findings of the runtime checks."""

    findings: tuple[Finding, ...] = ()
    unchecked: dict[Fault, str] = Field(default_factory=dict)
    timing: Timing | None = None
    batches: tuple[int, ...] = ()


def run_runtime_checks(path: Path, hints: CallerHints) -> RuntimeFindings:
    """Load the model, time its first and later calls, and call it with other batch sizes."""
    context = read_context(path, hints)
    try:
        [session_ms], session = time_calls(partial(open_limited, path))
    except StageError as error:
        finding = _rejected(one_line(error))
        return RuntimeFindings(findings=(finding,), unchecked=unrun("ONNX Runtime rejects the model"))
    try:
        size, feed, first_call_ms = _first_call(session, context)
    except _NoCall as error:
        return RuntimeFindings(findings=error.findings, unchecked=unrun(str(error)))
    steady_ms, _ = time_calls(partial(session.run, None, feed), 1e3 * STEADY_S, most=STEADY_CALLS)
    timing = Timing(session_ms=session_ms, first_call_ms=first_call_ms, steady_ms=median(steady_ms))
    if slow_first_call.is_slow(timing):  # a busy machine looks the same, but rarely twice
        timing = min(timing, _measure_again(path, feed, timing.steady_ms), key=lambda timing: timing.first_answer_ms)
    runs = _run_batches(session, context, size, first_call_ms)
    checked = (slow_first_call.find(timing), frozen_batch.find_hidden(context, runs))
    return RuntimeFindings(findings=tuple(f for f in checked if f), timing=timing, batches=tuple(sorted(runs.shapes)))


def open_limited(model: Path, level: Level = "all") -> Any:
    """Open a session with at most `THREADS` threads."""
    return open_session(model, level=level, threads=min(THREADS, usable_threads()))


def _rejected(message: str) -> Finding:
    if "NOT_IMPLEMENTED" in message:
        return unregistered_operator.without_kernel(message)
    return Finding(fault="unrunnable", cause=message, fix="export the model again; see the message", fixable=False)


class _NoCall(Exception):  # noqa: N818 - not an error: some models need real inputs
    def __init__(self, reason: str, failure: str | None = None) -> None:
        super().__init__(reason)
        fix = "give real inputs with --data FILE.npz, or export the model again"
        self.findings = (Finding(fault="unrunnable", cause=failure, fix=fix, fixable=False),) if failure else ()


def _first_call(session: Any, context: ModelContext) -> tuple[int, NamedArrays, float]:
    """Return the size of the dynamic axes with which the model runs, the inputs of that call, and its milliseconds."""
    failure = ""
    generator = context.generator
    for batch_size in (1, *(hidden_sizes(context.graph) if generator.takes_batches else ())):
        try:
            for size, feed in generator.feeds(batch_size):
                try:
                    [first_call_ms], _ = time_calls(partial(session.run, None, feed))
                except Exception as error:  # ONNX Runtime's exceptions share no public base
                    failure = failure or one_line(error)
                    continue
                return size, feed, first_call_ms
        except StageError as error:
            raise _NoCall(str(error), str(error)) from error
        except (TypeError, ValueError) as error:  # a type without a NumPy equivalent
            raise _NoCall(f"no inputs can be generated: {one_line(error)}") from error
    sizes = generator.fitting_sizes()
    if len(sizes) == 1:
        raise _NoCall("ONNX Runtime fails on inputs of the declared shape", f"ONNX Runtime failed: {failure}")
    tried = f"the model runs with none of the sizes {sizes} of its dynamic axes"
    raise _NoCall(f"{tried}; give real inputs with --data FILE.npz")


def unrun(reason: str) -> dict[Fault, str]:
    """Return the faults that cannot be checked in a model that does not run, with the reason."""
    return {"slow_first_call": reason, "frozen_batch": f"only the declared shapes were checked: {reason}"}


def _measure_again(path: Path, feed: NamedArrays, steady_ms: float) -> Timing:
    [session_ms], session = time_calls(partial(open_limited, path))
    [first_call_ms], _ = time_calls(partial(session.run, None, feed))
    return Timing(session_ms=session_ms, first_call_ms=first_call_ms, steady_ms=steady_ms)


def _run_batches(session: Any, context: ModelContext, size: int, first_call_ms: float) -> frozen_batch.BatchRuns:
    """Call the model with several batch sizes; if one sample fails, also with the constant sizes found in the graph."""
    runs, generator = frozen_batch.BatchRuns(), context.generator
    names = [output.name for output in session.get_outputs()]

    def call(count: int) -> None:
        try:
            values = session.run(names, generator.feed(count, size))
        except Exception as error:  # the failure is the result
            runs.failures[count] = one_line(error)
        else:
            runs.shapes[count] = {n: v.shape for n, v in zip(names, values, strict=True) if hasattr(v, "shape")}

    if generator.takes_batches:
        for count in BATCHES if first_call_ms < 1e3 * SLOW_CALL_S else BATCHES[:2]:
            call(count)
    if 1 in runs.failures:
        for count in sorted({*hidden_sizes(context.graph)} - {*BATCHES}):
            call(count)
    return runs


def hidden_sizes(graph: onnx.GraphProto) -> list[int]:
    """Return the constant first axes of Reshapes, from 2 to `MAX_HIDDEN`, that may be a batch size."""
    return sorted({shape[0] for _, shape in constant_reshapes(graph) if 1 < shape[0] <= MAX_HIDDEN})
