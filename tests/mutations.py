"""Two hundred damaged or hostile ONNX files, the same ones at every run."""

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import faulty_models
import numpy as np
import onnx
import onnx_text
from onnx import TensorProto, helper, numpy_helper, parser

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


def sample(count: int) -> list[Mutation]:
    """Return some, spread over all kinds."""
    everything = mutations()
    return everything[:: len(everything) // count][:count]


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
