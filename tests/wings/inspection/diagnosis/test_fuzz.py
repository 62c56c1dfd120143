"""Two hundred damaged or hostile files: whatever they are, the answer is a diagnosis or one clear error.

One is diagnosed and inspected in children of its own, as users do, or many in one child.
"""

import signal
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import faulty_models
import numpy as np
import onnx
import onnx_text
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

from gauntlet.core.errors import PipelineError
from gauntlet.runtime.subprocess_runner import SubprocessFailed, SubprocessResult, run_in_subprocess
from wings.inspection.library import diagnosis, summary

pytestmark = pytest.mark.usefixtures("apart", "no_process_is_left")

BASES = (
    faulty_models.cnn,
    faulty_models.branches,
    faulty_models.nhwc,
    faulty_models.leaked_constants,
    faulty_models.batch_norm_that_trains,
)
PLACES = (
    "../../etc/passwd",
    "/etc/passwd",
    "../../../../../../../../etc/passwd",
    "C:\\Windows\\win.ini",
    "folder/../../secret.bin",
    "/dev/zero",
    "/proc/self/mem",
    ".",
    "not-there.bin",
    "\x00",
    "x" * 5000,
    "..",
)
ABSURD = (2**31, 2**40, 2**62, 2**63 - 1, -5, 10**12)


class Mutation(NamedTuple):
    """One file."""

    name: str
    content: bytes


@cache
def mutations() -> list[Mutation]:
    """Return all of them: 50 truncated, 80 with flipped bits, and 70 that were written with intent."""
    return [*_truncated(50), *_flipped(80), *_crafted(70)]


def _base(number: int) -> onnx.ModelProto:
    return BASES[number % len(BASES)]()


def _truncated(count: int) -> Iterator[Mutation]:
    for i in range(count):
        content = _base(i).SerializeToString()
        yield Mutation(f"truncated-{i}", content[: len(content) * i // count])


def _flipped(count: int) -> Iterator[Mutation]:
    for i in range(count):
        rng = np.random.default_rng(i)
        content = np.frombuffer(_base(i).SerializeToString(), np.uint8).copy()
        # Half of them in the first bytes and the last, where the structure is and the weights are not.
        ends = np.concatenate([np.arange(400), np.arange(len(content) - 400, len(content))])
        where = rng.choice(ends if i % 2 else len(content), size=1 + i % 7, replace=False)
        content[where] ^= (1 << rng.integers(0, 8, len(where))).astype(np.uint8)
        yield Mutation(f"flipped-{i}", content.tobytes())


def _crafted(count: int) -> Iterator[Mutation]:
    makers = (_wrong_shape, _cycle, _absurd_input, _absurd_intermediate, _outside, _huge_tensor, _endless)
    for i in range(count):
        maker = makers[i % len(makers)]
        yield Mutation(f"{maker.__name__.strip('_')}-{i}", maker(i // len(makers)).SerializeToString())


def _wrong_shape(i: int) -> onnx.ModelProto:
    proto = _base(i)
    tensor = proto.graph.initializer[i % len(proto.graph.initializer)]
    shapes: tuple[list[int], ...] = ([7], [1, 1, 1], [3, 16, 16, 3, 2], [0], [2, 0, 5])
    shape = shapes[i % len(shapes)]
    if i % 2:
        tensor.CopyFrom(numpy_helper.from_array(np.ones(shape, np.float32), tensor.name))
    else:  # the shape says one thing and the bytes say another
        del tensor.dims[:]
        tensor.dims.extend(shape)
    return proto


def _cycle(i: int) -> onnx.ModelProto:
    proto = _base(i)
    nodes = proto.graph.node
    first = i % 3
    nodes[first].input[0] = nodes[min(first + i, len(nodes) - 1)].output[0]
    return proto


def _absurd_input(i: int) -> onnx.ModelProto:
    proto = _base(i)
    axes = proto.graph.input[0].type.tensor_type.shape.dim
    for axis in list(axes)[i % 2 :]:
        axis.dim_value = ABSURD[i % len(ABSURD)]
    return proto


def _absurd_intermediate(i: int) -> onnx.ModelProto:
    """Small inputs, and a node that asks for terabytes."""
    size = (2**20, 2**33, 2**50)[i % 3]
    output, nodes = (
        ("float[?]", "big = ConstantOfShape(shape) y = ReduceSum<keepdims = 0>(big, axes)"),
        ("float[?,?]", "y = Expand(x, shape)"),
        ("float[?,?]", "y = Tile(x, shape)"),
        ("int64[?]", "y = Range(low, high, one)"),
    )[i % 4]
    return onnx_text.model(f"""
        absurd (float[batch,1] x) => ({output} y)
        <
            int64[2] shape = {{{size}, {size}}}, int64[1] axes = {{0}},
            int64 low = {{0}}, int64 high = {{{size * size // 2**42 + size}}}, int64 one = {{1}}
        >
        {{ {nodes} }}
    """)


def _outside(i: int) -> onnx.ModelProto:
    proto = _base(i)
    tensor = proto.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=PLACES[i % len(PLACES)])
    if i % 2:
        tensor.external_data.add(key="length", value=str(2**40))
    return proto


def _huge_tensor(i: int) -> onnx.ModelProto:
    proto = _base(i)
    tensor = proto.graph.initializer[i % len(proto.graph.initializer)]
    del tensor.dims[:]
    tensor.dims.extend([ABSURD[i % len(ABSURD)], 3][: 1 + i % 2])
    if i % 3:
        tensor.ClearField("raw_data")
    return proto


def _endless(i: int) -> onnx.ModelProto:
    """A loop without an end, and deeply nested branches."""
    proto = faulty_models.branches()
    if i % 2:
        trips = next(t for t in proto.graph.initializer if t.name == "trips")
        trips.CopyFrom(numpy_helper.from_array(np.int64(2**62), "trips"))
        return proto
    for _ in range(20 + 10 * i):
        then = helper.make_graph(list(proto.graph.node), "deep", [], list(proto.graph.output))
        output = proto.graph.output[0].name
        branch = parser.parse_node(f"{output}x = If(yes)")
        branch.attribute.extend(helper.make_attribute(f"{name}_branch", then) for name in ("then", "else"))
        del proto.graph.node[:]
        proto.graph.node.append(branch)
        proto.graph.output[0].name = output + "x"
        if proto.ByteSize() > 500_000:
            break
    return proto


MAX_SECONDS = diagnosis.TIMEOUT_S + 60
MAX_BYTES = 2_000_000_000


def check(mutation: Mutation, folder: Path) -> str:
    """Diagnose and inspect one file; return what became of it."""
    path = folder / f"{mutation.name}.onnx"
    path.write_bytes(mutation.content)
    start = time.monotonic()
    try:
        result = diagnosis.diagnose(path)
    except PipelineError as error:
        outcome = _one_clear_error(path, error)
    else:
        outcome = "diagnosis"
        assert result.peak_rss_bytes < MAX_BYTES
        for finding in result.findings:
            assert finding.cause
            assert "\n" not in finding.cause + finding.fix
            assert "Traceback" not in finding.cause
    assert time.monotonic() - start < MAX_SECONDS
    start = time.monotonic()
    try:
        summary.inspect(path)
    except PipelineError as error:
        _one_clear_error(path, error)
    assert time.monotonic() - start < MAX_SECONDS
    return outcome


def check_many(mutations: list[Mutation], folder: Path) -> list[str]:
    """Check all of them in one child; what it cannot do, or ends at, is checked in children of its own."""
    outcomes: list[str] = []
    note = folder / "outcomes"
    while len(outcomes) < len(mutations):
        note.write_text("")
        rest = mutations[len(outcomes) :]
        try:
            run_in_subprocess(_be_the_child, rest, folder, note, timeout_s=120, memory_bytes=MAX_BYTES)
        except SubprocessFailed:
            told = [*note.read_text().split(), "alone"]  # the last one ended it
        else:
            told = note.read_text().split()
        pairs = zip(rest, told, strict=False)
        outcomes += [check(one, folder) if outcome == "alone" else outcome for one, outcome in pairs]
    return outcomes


def _be_the_child(mutations: list[Mutation], folder: Path, note: Path) -> None:
    direct = lambda function, *args, **_limits: SubprocessResult(function(*args), 0)  # noqa: E731 - this is the child
    diagnosis.run_in_subprocess = summary.run_in_subprocess = direct  # type: ignore[assignment]
    for mutation in mutations:
        signal.setitimer(signal.ITIMER_REAL, MAX_SECONDS)
        try:
            outcome = check(mutation, folder)
        except Exception:  # in a child of its own it may be one clear error
            outcome = "alone"
        with note.open("a") as file:
            file.write(f"{outcome}\n")


def _one_clear_error(path: Path, error: PipelineError) -> str:
    assert error.exit_code == 3
    assert path.name in str(error)
    assert "\n" not in str(error)
    assert "Traceback" not in str(error)
    cause = error.__cause__
    assert not isinstance(cause, SubprocessFailed) or cause.peak_rss_bytes < MAX_BYTES
    return "error"


def violent() -> list[Mutation]:
    """Return those that ask for terabytes or do not end."""
    return [m for m in mutations() if "absurd_intermediate" in m.name or "endless" in m.name]


@pytest.mark.slow
def test_every_damaged_file_is_a_diagnosis_or_one_clear_error(tmp_path: Path) -> None:
    """All but the violent ones share one child; whoever does not fit in there is checked alone."""
    outcomes = check_many([mutation for mutation in mutations() if mutation not in violent()], tmp_path)
    assert len(outcomes) == 180
    assert set(outcomes) == {"diagnosis", "error"}


@pytest.mark.nightly
@pytest.mark.parametrize("mutation", {m.content: m for m in violent()}.values(), ids=lambda m: m.name)
def test_violent_file_is_a_diagnosis_or_one_clear_error(tmp_path: Path, mutation: Mutation) -> None:
    check(mutation, tmp_path)
