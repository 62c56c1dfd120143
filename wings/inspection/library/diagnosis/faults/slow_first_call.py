"""Slow first call: the time to the first outputs of a fresh process, against later calls."""

import tempfile
from pathlib import Path

import onnx

from gauntlet.onnx_model.graph import replace_model
from gauntlet.onnx_model.model_file import write_model
from gauntlet.runtime.session import open_session
from wings.inspection.library.diagnosis.findings import Finding, Timing

SLOW_RATIO = 20
SLOW_MS = 1000
"""A first call is slow if it exceeds both: this multiple of a later call, and this many milliseconds."""


def is_slow(timing: Timing) -> bool:
    """Return whether the first call is slow."""
    return timing.first_answer_ms > max(SLOW_MS, SLOW_RATIO * timing.steady_ms)


def find(timing: Timing) -> Finding | None:
    """Check the measured times."""
    if not is_slow(timing):
        return None
    fixable = timing.session_ms >= timing.first_call_ms
    if fixable:
        slowest = f"creating the session: {timing.session_ms:.0f} ms"
        reason = "the runtime optimizes the graph and computes its constants at every start"
    else:
        slowest = f"the first call: {timing.first_call_ms:.0f} ms"
        reason = "the runtime prepares its kernels and memory at the first call"
    cause = f"the first outputs take {timing.first_answer_ms:.0f} ms ({slowest}), "
    cause += f"a later call takes {timing.steady_ms:.3g} ms: {reason}"
    fix = "save the optimized graph with --fix, and " * fixable + "call the model once before it serves requests"
    return Finding(fault="slow_first_call", cause=cause, fix=fix, fixable=fixable, severity="warning")


def fix(proto: onnx.ModelProto) -> str:
    """Replace the graph by ONNX Runtime's optimized one of level `basic`, in place; return what was done."""
    before = len(proto.graph.node)
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "source.onnx", Path(folder) / "optimized.onnx"
        write_model(proto, source)
        # The result of higher levels may run on this processor only.
        open_session(source, level="basic", save_to=target)
        optimized = onnx.load(target)
    replace_model(proto, optimized)
    return f"saved the optimized graph: {before} nodes became {len(proto.graph.node)}"
