"""Slow first call: the first answer of a fresh process against the later ones."""

import tempfile
from pathlib import Path

import onnx

from tasks.diagnose.finding import Finding, Timing
from tasks.model_file import write_model
from tasks.runtime.session import open_session

SLOW_RATIO = 20
SLOW_MS = 1000
"""Slow is what takes both: many times a later call, and so long that a person notices."""


def is_slow(timing: Timing) -> bool:
    """Tell whether the first caller waits too long."""
    return timing.first_answer_ms > max(SLOW_MS, SLOW_RATIO * timing.steady_ms)


def find(timing: Timing) -> Finding | None:
    """Judge what was measured."""
    if not is_slow(timing):
        return None
    parts = {"building the session": timing.session_ms, "the call itself": timing.first_call_ms}
    worst = max(parts, key=lambda name: parts[name])
    why = {
        "building the session": "the runtime optimises the graph and computes its constants at every start",
        "the call itself": "the runtime prepares its kernels and memory at the first call",
    }[worst]
    saving = worst == "building the session"
    return Finding(
        fault="slow_first_call",
        cause=f"the first answer takes {timing.first_answer_ms:.0f} ms ({worst} {parts[worst]:.0f} ms) and a later one "
        f"{timing.steady_ms:.3g} ms: {why}",
        fix="save the optimised graph (--fix does), and " * saving + "call the model once before it serves",
        fixable=saving,
        severity="warning",
    )


def fix(proto: onnx.ModelProto) -> str:
    """Replace the graph by the one that the runtime makes of it at the portable level, in place; tell what was done."""
    before = len(proto.graph.node)
    kept, ir_version = list(proto.metadata_props), proto.ir_version
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "source.onnx", Path(folder) / "optimised.onnx"
        write_model(proto, source)
        open_session(source, level="basic", save_to=target)  # higher levels write what only this processor can run
        optimised = onnx.load(target)
    del optimised.metadata_props[:]
    optimised.metadata_props.extend(kept)
    optimised.ir_version = min(optimised.ir_version, ir_version)
    proto.CopyFrom(optimised)
    return f"saved the optimised graph: {before} nodes became {len(proto.graph.node)}"
