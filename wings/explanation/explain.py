"""Explain why a candidate is not faster, from its optimized graph and its profile."""

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
from pydantic import Field

from gauntlet.core.arrays import NamedArrays
from gauntlet.core.artifact import Artifact
from gauntlet.core.errors import one_line
from gauntlet.core.facts import Facts
from gauntlet.core.frozen import Frozen, Number
from gauntlet.core.report import Report
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.golden import Golden
from gauntlet.onnx_model.model_file import read_graph
from gauntlet.onnx_model.operator_types import FLOAT_OPS, INTEGER_OPS, quantized_nodes
from gauntlet.runtime.batched_inference import batched_inference
from gauntlet.runtime.graph_fingerprint import graph_fingerprint
from gauntlet.runtime.integer_share import IntegerShare, measure_integer_share
from gauntlet.runtime.processor import Processor
from gauntlet.runtime.profiler_trace import LAYOUT_OPS, QDQ_OPS, Profile, summarize_profile
from gauntlet.runtime.session import open_session
from gauntlet.runtime.timing import time_calls
from gauntlet.targets.ort import OrtCpu
from tasks.benchmark.config import BenchmarkConfig
from tasks.benchmark.facts import BenchmarkFacts

CALLS = (3, 9)
"""Least and most calls; the first is not counted."""
SECONDS = 1.0
"""Time limit for calls beyond the least number."""
MIN_SHARE = 0.05
"""Share of the kernel time below which nothing is a reason."""
LARGE_SHARE = 0.5
SMALL_MS = 0.5
HIGH_NON_KERNEL_SHARE = 0.4
"""The profiler rounds short kernels up to whole microseconds, so the real share is higher."""
MAX_REASONS = 2
"""Reasons in one line; the facts hold all of them."""
X86 = ("x86_64", "AMD64", "x86")
ZERO_POINTS = dict.fromkeys(("QLinearConv", "QLinearMatMul", "QGemm", "ConvInteger", "MatMulInteger"), 2)
ZERO_POINTS |= {"MatMulIntegerToFloat": 4}
"""Input index of the activations' zero point."""


class ExecutionProfile(Frozen):
    """One model's optimized graph in a session on this machine, and its profile."""

    profile: Profile
    graph: str = Field(description="digest of the session's optimized graph, without its weights")
    integers: IntegerShare | None = Field(description="None for a model without quantized nodes")
    signed_activations: int = Field(description="integer convolutions and matrix products with signed activations")
    ends: int = Field(description="inputs and outputs: the number of Q/DQ nodes that a fully integer model needs")

    @property
    def kernels_ms(self) -> float:
        """Time of all kernels in one call. Other load affects it far less than the latency of the call."""
        return sum(o.ms for o in self.profile.operators)

    def ms(self, *operators: str) -> float:
        """Return the time of all nodes of these types in one call."""
        return sum(o.ms for o in self.profile.operators if o.operator in operators)

    def share(self, *operators: str) -> float:
        """Return these types' share of the kernel time."""
        return self.ms(*operators) / self.kernels_ms if self.kernels_ms else 0.0

    def nodes(self, *operators: str) -> int:
        """Return the number of nodes of these types in one call."""
        return sum(o.nodes for o in self.profile.operators if o.operator in operators)


class Reason(Frozen):
    """One reason why a candidate is not faster."""

    name: str
    text: str


class Explanation(Frozen):
    """Why one candidate is not faster at one batch size."""

    candidate: str
    batch: int
    reasons: tuple[Reason, ...] = Field(description="most important first")
    profile: ExecutionProfile

    @property
    def text(self) -> str:
        """The reasons that fit into one line."""
        return "; ".join(reason.text for reason in self.reasons[:MAX_REASONS])


class ExplainFacts(Facts):
    """Why candidates are not proven fast enough at the deciding batch size."""

    reference: ExecutionProfile | None = Field(description="None where no candidate needed an explanation")
    explanations: tuple[Explanation, ...]
    failures: dict[str, str] = Field(description="why a candidate could not be profiled")

    def text(self, candidate: str, batch: int) -> str:
        """Return the reasons in one line; empty for a candidate without an explanation at this batch size."""
        return next((e.text for e in self.explanations if (e.candidate, e.batch) == (candidate, batch)), "")


def explain(
    config: BenchmarkConfig,
    workspace: Workspace,
    *,
    models: Mapping[str, Artifact],
    race: BenchmarkFacts,
    golden: Artifact,
    batch: int,
    min_speedup: float,
) -> Report[ExplainFacts]:
    """Profile every candidate that is not proven fast enough, and the reference, on the first target.

    `models` maps candidate names to artifacts. `batch` and `min_speedup` are those of `select`, unless the models fix
    the batch size or the A/A deviation is larger.
    """
    real = Golden.load(workspace.path(golden)).real.inputs
    sizes = {row.batch for row in race.result(race.reference).rows}
    batch = batch if batch in sizes else min(sizes)
    required = float(np.maximum(min_speedup, 1 + race.aa_deviation))  # unlike max(), keeps NaN

    def profile(name: str) -> ExecutionProfile:
        return profile_execution(workspace.path(models[name]), real, batch, config.all_sessions[0], config.threads)

    reference: ExecutionProfile | None = None
    explanations, failures = [], {}
    for candidate in _slow_candidates(config, race, batch, required):
        try:
            reference = reference or profile(race.reference)
            slow = profile(candidate)
            reasons = reasons_for(slow, reference, Processor.current())
        except Exception as error:  # exceptions of the runtime share no base; the race is valid without a reason
            failures[candidate] = one_line(error)
            continue
        explanations.append(Explanation(candidate=candidate, batch=batch, reasons=reasons, profile=slow))
    facts = ExplainFacts(reference=reference, explanations=tuple(explanations), failures=failures)
    return Report(facts=facts)


def _slow_candidates(config: BenchmarkConfig, race: BenchmarkFacts, batch: int, required: float) -> list[str]:
    """Return the candidates whose best row, in a session variant, is not proven fast enough."""
    sessions = {session.name for session in config.all_sessions}
    best = {r.candidate: next((row for row in r.rows if row.batch == batch), None) for r in race.results}
    slow = {name for name, row in best.items() if row and row.target in sessions and not row.speedup_low > required}
    return [name for name in best if name in slow - {race.reference}]


def profile_execution(
    model: Path, inputs: NamedArrays, batch: int, target: OrtCpu | None = None, threads: int | None = None
) -> ExecutionProfile:
    """Load a model as in the race, call it a few times with the runtime's profiler, and read graph and trace."""
    target = target or OrtCpu()
    with TemporaryDirectory() as folder:
        optimized = Path(folder) / "optimized.onnx"
        session = open_session(
            model,
            level=target.level,
            threads=target.threads or threads,
            inter_op_threads=target.inter_op_threads,
            arena=target.arena,
            settings=target.settings(),
            save_to=optimized,
            profile_to=Path(folder) / "profile",
        )
        inference = batched_inference(session, inputs)
        feed = inference.feed(0, inference.batch(batch))
        time_calls(partial(session.run, None, feed), 1e3 * SECONDS, least=CALLS[0], most=CALLS[1])
        profile = summarize_profile(Path(session.end_profiling()))
        optimized_graph = read_graph(optimized)
    single = inference.feed(0, inference.batch(1))
    return ExecutionProfile(
        profile=profile,
        graph=graph_fingerprint(optimized_graph, weights=False),
        integers=measure_integer_share(model, single) if quantized_nodes(read_graph(model)) else None,
        signed_activations=_signed_activations(optimized_graph),
        ends=len(session.get_inputs()) + len(session.get_outputs()),
    )


def reasons_for(slow: ExecutionProfile, reference: ExecutionProfile, processor: Processor) -> tuple[Reason, ...]:
    """Return the reasons why a model is not faster than the reference, most important first."""
    if slow.graph == reference.graph:
        text = "the runtime optimizes both models to the same graph, so there is nothing to gain"
        return (Reason(name="same_graph", text=text),)
    integer = _integer_reasons(slow, reference, processor, slow.integers.share) if slow.integers else ()
    top = slow.profile.operators[0].operator
    none = ("none_found", f"most time is in {top} ({_share(slow, top)}), where the profile shows no fault")
    named = [*integer, *_overhead_reasons(slow, reference)] or [none]
    return tuple(Reason(name=name, text=text) for name, text in named)


def _integer_reasons(
    slow: ExecutionProfile, reference: ExecutionProfile, processor: Processor, integer_share: float
) -> Iterator[tuple[str, str]]:
    if dynamic := slow.nodes("ConvInteger"):
        text = f"{dynamic} ConvInteger nodes of dynamic quantization take {_share(slow, 'ConvInteger')} of the time"
        yield "dynamic_convolution", f"{text} and have no fast kernel: quantize statically"
    x86, signed = processor.architecture in X86, slow.signed_activations
    if x86 and signed:
        text = f"{signed} integer kernels take signed activations, for which x86 has no fast kernel"
        yield "signed_activations", f"{text}; use unsigned activations"
    if x86 and not processor.has_vnni:
        yield "no_vnni", "this processor has no VNNI instructions, which fast INT8 needs"
    if slow.share(*QDQ_OPS) >= MIN_SHARE:
        share, nodes = _share(slow, *QDQ_OPS), slow.nodes("QuantizeLinear", "DequantizeLinear")
        if nodes > slow.ends:
            yield "unfused_qdq", f"{nodes} Q/DQ nodes are not fused into integer kernels, {share} of the time"
        else:
            yield "qdq_at_the_ends", f"quantizing inputs and dequantizing outputs takes {share} of the time"
    if integer_share < 1 - MIN_SHARE:
        yield "float_macs", f"only {_percent(integer_share)} of the multiplications are in integers"
    arithmetic, float_ms = slow.ms(*INTEGER_OPS, *FLOAT_OPS), reference.ms(*FLOAT_OPS)
    if float_ms and arithmetic > (1 - MIN_SHARE) * float_ms:
        slowdown = f"{arithmetic / float_ms:.2f}x"
        yield "slow_kernels", f"its convolutions and matrix products take {slowdown} the time of the float ones"
    if reference.share(*FLOAT_OPS) < LARGE_SHARE:
        share = _share(reference, *FLOAT_OPS)
        text = f"convolutions and matrix products are {share} of the reference's time"
        yield "little_arithmetic", f"little to gain: {text}"


def _overhead_reasons(slow: ExecutionProfile, reference: ExecutionProfile) -> Iterator[tuple[str, str]]:
    least_ms = MIN_SHARE * reference.kernels_ms
    if slow.ms(*LAYOUT_OPS) - reference.ms(*LAYOUT_OPS) > least_ms:
        nodes, share = slow.nodes(*LAYOUT_OPS), _share(slow, *LAYOUT_OPS)
        yield "layout", f"nodes that only change the layout ({nodes}) take {share} of the time"
    known = {*INTEGER_OPS, *FLOAT_OPS, *LAYOUT_OPS, *QDQ_OPS}
    rest = {o.operator: o.ms - reference.ms(o.operator) for o in slow.profile.operators if o.operator not in known}
    worst = max(rest, key=lambda name: rest[name], default="")
    if worst and rest[worst] > least_ms:
        text = f"{worst} nodes ({slow.nodes(worst)}) take {_share(slow, worst)} of the time"
        yield "more_work", f"{text}, more than in the reference"
    outside = slow.profile.non_kernel_share
    if slow.kernels_ms < SMALL_MS and outside > HIGH_NON_KERNEL_SHARE:
        yield "small", f"the model is small: {_percent(outside)} of a call is spent outside its kernels"


def _signed_activations(optimized: onnx.ModelProto) -> int:
    """Return the number of integer kernels of the optimized graph with signed activations.

    The model file does not show it: on x86, ONNX Runtime makes signed activations of Q/DQ nodes unsigned where it can.
    """
    stored = {tensor.name: tensor.data_type for tensor in optimized.graph.initializer}
    kernels = [(node, ZERO_POINTS[node.op_type]) for node in optimized.graph.node if node.op_type in ZERO_POINTS]
    zero_points = [name for node, index in kernels for name in node.input[index : index + 1]]
    return sum(stored.get(name) == onnx.TensorProto.INT8 for name in zero_points)


def _share(slow: ExecutionProfile, *operators: str) -> str:
    return _percent(slow.share(*operators))


def _percent(share: Number) -> str:
    return f"{100 * share:.0f} %"
