"""Summarize a trace of ONNX Runtime's profiler: which kernels ran, and how long they took."""

import json
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

from pydantic import Field

from gauntlet.core.frozen import Frozen, Number
from gauntlet.onnx_model.operator_types import CONTROL_FLOW

SUFFIX = "_kernel_time"
LAYOUT_OPS = {"ReorderInput", "ReorderOutput", "Transpose", "MemcpyFromHost", "MemcpyToHost"}
QDQ_OPS = {"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"}
MAX_NODES = 10


class OperatorTime(Frozen):
    """All nodes of one type, per call."""

    operator: str
    nodes: int
    ms: Number
    share: Number = Field(description="of the call")


class NodeTime(Frozen):
    """One node, per call."""

    node: str
    operator: str
    provider: str
    ms: Number
    share: Number = Field(description="of the call")


class Profile(Frozen):
    """The parts of a call's time. The profiler itself takes time, so only shares can be compared."""

    calls: int
    call_ms: Number = Field(description="median of a whole call, with the profiler on")
    operators: tuple[OperatorTime, ...] = Field(description="the slowest first")
    slowest: tuple[NodeTime, ...] = Field(description=f"up to {MAX_NODES} nodes")
    layout_share: Number = Field(description="of the call: changing the layout of tensors, or copying them to a device")
    qdq_share: Number = Field(description="of the call: QuantizeLinear and DequantizeLinear that were not fused away")
    non_kernel_share: Number = Field(description="of the call: in no kernel")


def kernel_events(events: list[dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    """Return node name and event of each kernel, in the order of execution."""
    kernels = (event for event in events if event["cat"] == "Node" and event["name"].endswith(SUFFIX))
    return [(event["name"].removesuffix(SUFFIX), event) for event in kernels]


def read_events(trace: Path) -> list[dict[str, Any]]:
    """Return the events of a trace file: JSON in the format of Chromium's trace viewer, times in microseconds."""
    return json.loads(trace.read_text())  # type: ignore[no-any-return]


def summarize_profile(trace: Path) -> Profile:
    """Summarize a trace by medians over calls, without the first one of several, which still allocates memory."""
    events = read_events(trace)
    runs = sorted((e["ts"], e["dur"]) for e in events if e["name"] == "model_run")
    if not runs:
        raise ValueError(f"{trace.name}: the trace has no call")
    counted = runs[1:] or runs
    call_ms = median(dur for _, dur in counted) / 1000
    by_node: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    for name, event in kernel_events(events):
        operator = event["args"]["op_name"]
        if event["ts"] >= counted[0][0] and operator not in CONTROL_FLOW:  # whose nodes have their own events
            by_node[name, operator, event["args"]["provider"]].append(event["dur"])
    # A node in a loop's body runs several times per call.
    ms = {key: median(times) * max(1, round(len(times) / len(counted))) / 1000 for key, times in by_node.items()}
    by_operator: dict[str, list[float]] = defaultdict(list)
    for (_, operator, _), value in ms.items():
        by_operator[operator].append(value)

    def share(value: float) -> float:
        return value / call_ms if call_ms else 0.0

    operators = sorted(by_operator.items(), key=lambda item: -sum(item[1]))
    slowest = sorted(ms.items(), key=lambda item: -item[1])[:MAX_NODES]
    return Profile(
        calls=len(counted),
        call_ms=call_ms,
        operators=tuple(
            OperatorTime(operator=name, nodes=len(values), ms=sum(values), share=share(sum(values)))
            for name, values in operators
        ),
        slowest=tuple(
            NodeTime(node=node, operator=operator, provider=provider, ms=value, share=share(value))
            for (node, operator, provider), value in slowest
        ),
        layout_share=share(sum(sum(values) for name, values in operators if name in LAYOUT_OPS)),
        qdq_share=share(sum(sum(values) for name, values in operators if name in QDQ_OPS)),
        non_kernel_share=max(0.0, 1 - share(sum(ms.values()))),
    )
