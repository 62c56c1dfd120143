"""ONNX Runtime's own trace of some calls, read and summed up: which kernels ran, and what each of them took."""

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from pydantic import Field

from gauntlet.core.frozen import Frozen, Number

SUFFIX = "_kernel_time"
HOLDS_OTHERS = {"If", "Loop", "Scan"}
"""Their time is that of the nodes in their bodies, which have events of their own."""
LAYOUT_OPS = {"ReorderInput", "ReorderOutput", "Transpose", "MemcpyFromHost", "MemcpyToHost"}
QDQ_OPS = {"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"}
MOST_NODES = 10


@dataclass(frozen=True)
class KernelEvent:
    """One run of one node."""

    node: str
    operator: str
    provider: str
    start_us: int
    took_us: int
    shapes: dict[str, Any]
    """`input_type_shape` and `output_type_shape`, as the runtime writes them."""


class OperatorTime(Frozen):
    """All nodes of one type, in one call."""

    operator: str
    nodes: int
    ms: Number
    share: Number = Field(description="of the call")


class NodeTime(Frozen):
    """One node, in one call."""

    node: str
    operator: str
    provider: str
    ms: Number
    share: Number = Field(description="of the call")


class Profile(Frozen):
    """Where a call's time goes. The profiler itself takes time, so only the shares are to be compared."""

    calls: int
    call_ms: Number = Field(description="median of a whole call, with the profiler on")
    operators: tuple[OperatorTime, ...] = Field(description="the slowest first")
    slowest: tuple[NodeTime, ...] = Field(description=f"up to {MOST_NODES} nodes")
    layout_share: Number = Field(description="of the call: changing the layout of tensors, or copying them to a device")
    qdq_share: Number = Field(description="of the call: QuantizeLinear and DequantizeLinear that were not fused away")
    non_kernel_share: Number = Field(description="of the call: in no kernel")


def kernel_events(events: Sequence[dict[str, Any]]) -> list[KernelEvent]:
    """Return the kernels in a trace's events, in their order."""
    return [
        KernelEvent(
            node=event["name"].removesuffix(SUFFIX),
            operator=event["args"]["op_name"],
            provider=event["args"]["provider"],
            start_us=event["ts"],
            took_us=event["dur"],
            shapes=event["args"],
        )
        for event in events
        if event["cat"] == "Node" and event["name"].endswith(SUFFIX)
    ]


def read_events(trace: Path) -> list[dict[str, Any]]:
    """Return the events of a trace file, which is JSON in the format of Chromium's trace viewer."""
    events: list[dict[str, Any]] = json.loads(trace.read_text())
    return events


def summarize_profile(trace: Path) -> Profile:
    """Sum up a trace; its first call, which still allocates memory, is left out where there is another.

    A node's time is the median over the calls.

    Raises:
        ValueError: when there is no call in it.
    """
    events = read_events(trace)
    runs = sorted((e["ts"], e["dur"]) for e in events if e["name"] == "model_run")
    if not runs:
        raise ValueError(f"{trace.name}: the trace holds no call")
    counted = runs[1:] or runs
    call_ms = median(dur for _, dur in counted) / 1000
    by_node: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    for kernel in kernel_events(events):
        if kernel.start_us >= counted[0][0] and kernel.operator not in HOLDS_OTHERS:
            by_node[kernel.node, kernel.operator, kernel.provider].append(kernel.took_us)
    calls = len(counted)
    # A node in a loop's body runs several times a call.
    ms = {key: median(times) * max(1, round(len(times) / calls)) / 1000 for key, times in by_node.items()}
    by_operator: dict[str, list[float]] = defaultdict(list)
    for (_, operator, _), value in ms.items():
        by_operator[operator].append(value)

    def share(value: float) -> float:
        return value / call_ms if call_ms else 0.0

    operators = sorted(by_operator.items(), key=lambda item: -sum(item[1]))
    slowest = sorted(ms.items(), key=lambda item: -item[1])[:MOST_NODES]
    return Profile(
        calls=calls,
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
