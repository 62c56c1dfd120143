"""Why a candidate is not faster: read from the graph that the runtime makes of it, and from where its time goes."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import numpy as np
import onnx
from pydantic import Field

from tasks.artifact import Artifact
from tasks.benchmark import BenchmarkFacts
from tasks.benchmark.config import BenchmarkConfig
from tasks.data.golden import Golden
from tasks.frozen import Frozen, Number
from tasks.model_file import read_graph
from tasks.report import Report
from tasks.runtime.calls import Arrays, calls
from tasks.runtime.engines.ort import FLOAT, INTEGER
from tasks.runtime.fingerprint import fingerprint
from tasks.runtime.graph import one_line
from tasks.runtime.macs import IntegerShare, integer_share, quantized_nodes
from tasks.runtime.processor import Processor, this_processor
from tasks.runtime.session import open_session
from tasks.runtime.trace import LAYOUT, QDQ, Profile, summarise
from tasks.targets.ort_cpu import OrtCpu
from tasks.workspace import Workspace

CALLS = (3, 9)
"""At least and at most so many; the first is not counted."""
SECONDS = 1.0
"""How long the calls may take, once there are enough."""
WORTH_TELLING = 0.05
"""Of the kernels' time: what takes less is no reason."""
MOSTLY = 0.5
SMALL_MS = 0.5
OFTEN_OUTSIDE = 0.4
"""The profiler rounds short kernels up to whole microseconds, so more time than it says is outside."""
MOST_REASONS = 2
"""In one line; the facts hold them all."""
X86 = ("x86_64", "AMD64", "x86")
ZERO_POINTS = {"QLinearConv": 2, "QLinearMatMul": 2, "QGemm": 2, "ConvInteger": 2, "MatMulInteger": 2}
ZERO_POINTS |= {"MatMulIntegerToFloat": 4}
"""The place of the activations' zero point among the inputs."""


class Traits(Frozen):
    """What one model becomes in a session on this machine, and where its time goes."""

    profile: Profile
    graph: str = Field(description="digest of the graph behind the session's optimisation, without its weights")
    integers: IntegerShare | None = Field(description="None where nothing is quantised")
    signed_activations: int = Field(description="convolutions and products in integers that take signed activations")
    ends: int = Field(description="inputs and outputs: so many Q/DQ nodes a model needs that is otherwise all integer")

    @property
    def kernels_ms(self) -> float:
        """What all kernels take in one call. A busy machine stretches the call around them far more than them."""
        return sum(o.ms for o in self.profile.operators)

    def ms(self, *operators: str) -> float:
        """Return what all nodes of these types take in one call."""
        return sum(o.ms for o in self.profile.operators if o.operator in operators)

    def share(self, *operators: str) -> float:
        """Return these types' part of the kernels' time."""
        return self.ms(*operators) / self.kernels_ms if self.kernels_ms else 0.0

    def nodes(self, *operators: str) -> int:
        """Return how many nodes of these types run in one call."""
        return sum(o.nodes for o in self.profile.operators if o.operator in operators)


class Reason(Frozen):
    """One thing that keeps a candidate from being faster."""

    name: str
    text: str


class Explanation(Frozen):
    """Why one candidate is not faster at one batch size."""

    candidate: str
    batch: int
    reasons: tuple[Reason, ...] = Field(description="the most telling first")
    traits: Traits

    @property
    def text(self) -> str:
        """The reasons that fit into one line."""
        return "; ".join(reason.text for reason in self.reasons[:MOST_REASONS])


class ExplainFacts(Frozen):
    """The candidates that are not proven fast enough, at the batch size that decides, and why."""

    reference: Traits | None = Field(description="None where nothing had to be explained")
    explanations: tuple[Explanation, ...]
    failures: dict[str, str] = Field(description="why a candidate could not be looked at")

    def text(self, candidate: str, batch: int) -> str:
        """Return the reasons in one line; nothing for a candidate that was not looked at, or at another batch size."""
        return next((e.text for e in self.explanations if (e.candidate, e.batch) == (candidate, batch)), "")


def explain(
    config: BenchmarkConfig,
    out: Workspace,
    *,
    models: Mapping[str, Artifact],
    race: BenchmarkFacts,
    golden: Artifact,
    batch: int,
    min_speedup: float,
) -> Report[ExplainFacts]:
    """Profile every candidate that is not proven fast enough, and the reference beside it, in the first target.

    Args:
        config: how they were raced.
        out: where to read.
        models: by candidate.
        race: what was measured.
        golden: real inputs.
        batch: the size that decides; of a fixed batch, only that one was measured.
        min_speedup: `select.min_speedup`, or more where the machine was noisy, is fast enough.
    """
    real = Golden.load(out.path(golden)).real.inputs
    sizes = {row.batch for row in race.result(race.reference).rows}
    batch = batch if batch in sizes else min(sizes)
    required = float(np.maximum(min_speedup, 1 + race.aa_deviation))  # NaN, unlike with max(), stays
    sessions = {session.name for session in config.all_sessions}

    def look(name: str) -> Traits:
        return traits(out.path(models[name]), real, batch, config.all_sessions[0], config.threads)

    reference: Traits | None = None
    explanations, failures = [], {}
    for result in race.results:
        row = next((row for row in result.rows if row.batch == batch), None)
        fast = row is None or row.target not in sessions or row.speedup_low > required
        if fast or result.candidate == race.reference:
            continue
        try:
            reference = reference or look(race.reference)
            found = look(result.candidate)
            reasons = tuple(reasons_for(found, reference, this_processor()))
        except Exception as error:  # of the runtime's own types; the race stands without a reason
            failures[result.candidate] = one_line(error)
            continue
        explanations.append(Explanation(candidate=result.candidate, batch=batch, reasons=reasons, traits=found))
    facts = ExplainFacts(reference=reference, explanations=tuple(explanations), failures=failures)
    return Report(stage="explain", facts=facts)


def traits(model: Path, inputs: Arrays, batch: int, target: OrtCpu | None = None, threads: int | None = None) -> Traits:
    """Load a model as the race does, call it a few times with the runtime's profiler on, and look at both."""
    target = target or OrtCpu()
    with TemporaryDirectory() as folder:
        optimised = Path(folder) / "optimised.onnx"
        session = open_session(
            model,
            level=target.level,
            threads=target.threads or threads,
            parallel=target.parallel,
            arena=target.arena,
            settings=target.settings(),
            save_to=optimised,
            profile_to=Path(folder) / "profile",
        )
        prepared = calls(session, inputs)
        feed = prepared.feed(0, prepared.batch(batch))
        start, number = perf_counter(), 0
        while number < CALLS[0] or (number < CALLS[1] and perf_counter() - start < SECONDS):
            session.run(None, feed)
            number += 1
        profile = summarise(Path(session.end_profiling()))
        loaded = read_graph(optimised)
        graph = fingerprint(loaded, weights=False)
    proto = read_graph(model)
    one = prepared.feed(0, prepared.batch(1))
    return Traits(
        profile=profile,
        graph=graph,
        integers=integer_share(model, one) if quantized_nodes(proto) else None,
        signed_activations=_signed_activations(loaded),
        ends=len(session.get_inputs()) + len(session.get_outputs()),
    )


def reasons_for(found: Traits, reference: Traits, processor: Processor) -> Iterator[Reason]:
    """Yield why a model is not faster than the reference, the most telling reason first."""
    if found.graph == reference.graph:
        yield Reason(name="same_graph", text="the runtime makes the same graph of both, so there is nothing to gain")
        return
    told = list(_of_integers(found, reference, processor)) if found.integers else []
    told += _of_overhead(found, reference)
    top = found.profile.operators[0]
    yield from told or [
        Reason(
            name="none_found",
            text=f"the profile shows no cause; most time is in {top.operator} ({_of(found, top.operator)})",
        )
    ]


def _of_integers(found: Traits, reference: Traits, processor: Processor) -> Iterator[Reason]:
    integers = found.integers
    dynamic = found.nodes("ConvInteger")
    if dynamic:
        text = (
            f"{dynamic} ConvInteger nodes of dynamic quantisation take {_of(found, 'ConvInteger')} of the time and "
            "have no fast kernel: quantise statically"
        )
        yield Reason(name="dynamic_convolution", text=text)
    leftovers = found.nodes("QuantizeLinear", "DequantizeLinear")
    if found.signed_activations and processor.architecture in X86:
        text = (
            f"{found.signed_activations} integer kernels take signed activations, and no fast one of an x86 processor "
            "does; make them unsigned"
        )
        yield Reason(name="signed_activations", text=text)
    if processor.architecture in X86 and not {"avx512_vnni", "avx_vnni"} & processor.flags:
        yield Reason(name="no_vnni", text="this processor has no VNNI instructions, which make INT8 fast")
    if found.share(*QDQ) >= WORTH_TELLING:
        if leftovers > found.ends:
            text = f"{leftovers} Q/DQ nodes are not fused into integer kernels, {_of(found, *QDQ)} of the time"
            yield Reason(name="unfused_qdq", text=text)
        else:
            text = f"turning inputs into integers and outputs back takes {_of(found, *QDQ)} of the time"
            yield Reason(name="qdq_at_the_ends", text=text)
    if integers is not None and integers.share < 1 - WORTH_TELLING:
        yield Reason(name="float_macs", text=f"only {_share(integers.share)} of the multiplications are integer ones")
    arithmetic, was = found.ms(*INTEGER, *FLOAT), reference.ms(*FLOAT)
    if was and arithmetic > (1 - WORTH_TELLING) * was:
        text = f"its convolutions and products take {arithmetic / was:.2f}x the time of the float ones"
        yield Reason(name="slow_kernels", text=text)
    if reference.share(*FLOAT) < MOSTLY:
        text = f"little to gain: convolutions and products are {_of(reference, *FLOAT)} of the reference's time"
        yield Reason(name="little_arithmetic", text=text)


def _of_overhead(found: Traits, reference: Traits) -> Iterator[Reason]:
    whole_ms = reference.kernels_ms
    layouts = found.ms(*LAYOUT) - reference.ms(*LAYOUT)
    if layouts > WORTH_TELLING * whole_ms:
        text = f"{found.nodes(*LAYOUT)} nodes only change the layout, {_of(found, *LAYOUT)} of the time"
        yield Reason(name="layout", text=text)
    known = {*INTEGER, *FLOAT, *LAYOUT, *QDQ}
    rest = {o.operator: o.ms - reference.ms(o.operator) for o in found.profile.operators if o.operator not in known}
    worst = max(rest, key=lambda name: rest[name], default="")
    if worst and rest[worst] > WORTH_TELLING * whole_ms:
        text = f"{found.nodes(worst)} {worst} nodes take {_of(found, worst)} of the time, more than in the reference"
        yield Reason(name="more_work", text=text)
    if found.kernels_ms < SMALL_MS and found.profile.outside_share > OFTEN_OUTSIDE:
        text = f"the model is small: {_share(found.profile.outside_share)} of a call is spent outside its kernels"
        yield Reason(name="small", text=text)


def _signed_activations(loaded: onnx.ModelProto) -> int:
    """Return how many integer kernels of the optimised graph take signed activations.

    The file does not tell: on x86 ONNX Runtime makes the signed activations of Q/DQ nodes unsigned where it can.
    """
    stored = {tensor.name: tensor.data_type for tensor in loaded.graph.initializer}
    kernels = [(node, ZERO_POINTS[node.op_type]) for node in loaded.graph.node if node.op_type in ZERO_POINTS]
    zero_points = [name for node, place in kernels for name in node.input[place : place + 1]]
    return sum(stored.get(name) == onnx.TensorProto.INT8 for name in zero_points)


def _of(found: Traits, *operators: str) -> str:
    return _share(found.share(*operators))


def _share(share: Number) -> str:
    return f"{100 * share:.0f} %"
