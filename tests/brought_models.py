"""Models as people bring them: one of each kind that a pipeline for pictures would stumble over, with samples."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Samples = dict[str, np.ndarray]
Made = tuple[Path, Samples]

COUNT = 40
WIDTH = 16
RANDOM = np.random.default_rng(7)


def weights(name: str, *shape: int, dtype: type = np.float32) -> onnx.TensorProto:
    return numpy_helper.from_array((RANDOM.standard_normal(shape) / np.sqrt(shape[0])).astype(dtype), name)


def floats(*shape: int, dtype: type = np.float32) -> np.ndarray:
    return RANDOM.standard_normal((COUNT, *shape)).astype(dtype)


def value(name: str, kind: int, *shape: int | str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def save(
    folder: Path,
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    stored: list[onnx.TensorProto],
    domains: tuple[tuple[str, int], ...] = (("", 18),),
    **options: object,
) -> Path:
    graph = helper.make_graph(nodes, "brought", inputs, outputs, stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid(*d) for d in domains], ir_version=9)
    path = folder / "brought.onnx"
    onnx.save(model, path, **options)
    return path


def two_inputs(folder: Path) -> Made:
    """Two inputs of different shapes, two outputs."""
    nodes = [
        helper.make_node("MatMul", ["a", "w"], ["h"]),
        helper.make_node("Add", ["h", "b"], ["s"]),
        helper.make_node("Relu", ["s"], ["hidden"]),
        helper.make_node("MatMul", ["hidden", "v"], ["scores"]),
    ]
    inputs = [value("a", TensorProto.FLOAT, "n", WIDTH), value("b", TensorProto.FLOAT, "n", 8)]
    outputs = [value("scores", TensorProto.FLOAT, "n", 4), value("hidden", TensorProto.FLOAT, "n", 8)]
    path = save(folder, nodes, inputs, outputs, [weights("w", WIDTH, 8), weights("v", 8, 4)])
    return path, {"a": floats(WIDTH), "b": floats(8)}


def int64_input(folder: Path) -> Made:
    """Token numbers into an embedding; a number that never occurs would be out of range."""
    nodes = [
        helper.make_node("Gather", ["table", "tokens"], ["e"]),
        helper.make_node("ReduceMean", ["e", "axis"], ["m"], keepdims=0),
        helper.make_node("MatMul", ["m", "w"], ["scores"]),
    ]
    axis = numpy_helper.from_array(np.array([1], np.int64), "axis")
    stored = [weights("table", 30, WIDTH), axis, weights("w", WIDTH, 5)]
    inputs, outputs = [value("tokens", TensorProto.INT64, "n", 6)], [value("scores", TensorProto.FLOAT, "n", 5)]
    path = save(folder, nodes, inputs, outputs, stored)
    return path, {"tokens": RANDOM.integers(0, 30, (COUNT, 6))}


def loop(folder: Path) -> Made:
    """A Loop that multiplies three times, and an If inside the graph."""
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["state", "w"], ["m"]),
            helper.make_node("Tanh", ["m"], ["next"]),
            helper.make_node("Identity", ["go"], ["go_on"]),
        ],
        "body",
        [value("i", TensorProto.INT64), value("go", TensorProto.BOOL), value("state", TensorProto.FLOAT, "n", WIDTH)],
        [value("go_on", TensorProto.BOOL), value("next", TensorProto.FLOAT, "n", WIDTH)],
    )
    branches = {
        f"{name}_branch": helper.make_graph(
            [helper.make_node(kind, ["after"], [f"{name}_y"])],
            name,
            [],
            [value(f"{name}_y", TensorProto.FLOAT, "n", WIDTH)],
        )
        for name, kind in (("then", "Relu"), ("else", "Neg"))
    }
    nodes = [
        helper.make_node("Loop", ["trips", "yes", "x"], ["after"], body=body),
        helper.make_node("ReduceSum", ["after"], ["sum"], keepdims=0),
        helper.make_node("Greater", ["sum", "zero"], ["positive"]),
        helper.make_node("If", ["positive"], ["chosen"], **branches),
        helper.make_node("Add", ["chosen", "x"], ["z"]),
        helper.make_node("Abs", ["sum"], ["size"]),
        helper.make_node("MatMul", ["z", "v"], ["y"]),
    ]
    # The If looks at the whole batch, so this model takes one sample at a time.
    trips = [numpy_helper.from_array(np.array(3, np.int64), "trips"), numpy_helper.from_array(np.array(True), "yes")]
    zero = numpy_helper.from_array(np.array(0, np.float32), "zero")
    inputs, outputs = [value("x", TensorProto.FLOAT, 1, WIDTH)], [value("y", TensorProto.FLOAT, 1, 6)]
    stored = [*trips, zero, weights("w", WIDTH, WIDTH), weights("v", WIDTH, 6)]
    return save(folder, nodes, inputs, outputs, stored), {"x": floats(WIDTH)}


def external_data(folder: Path) -> Made:
    """Weights in a second file, in a folder of its own below the model."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("MatMul", ["h", "v"], ["y"])]
    inputs, outputs = [value("x", TensorProto.FLOAT, "n", WIDTH)], [value("y", TensorProto.FLOAT, "n", 4)]
    (folder / "weights").mkdir()
    path = save(
        folder,
        nodes,
        inputs,
        outputs,
        [weights("w", WIDTH, 64), weights("v", 64, 4)],
        save_as_external_data=True,
        location="weights/all.bin",
        size_threshold=0,
    )
    return path, {"x": floats(WIDTH)}


def float16(folder: Path) -> Made:
    """Half precision all through."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])]
    inputs, outputs = [value("x", TensorProto.FLOAT16, "n", WIDTH)], [value("y", TensorProto.FLOAT16, "n", 4)]
    path = save(folder, nodes, inputs, outputs, [weights("w", WIDTH, 4, dtype=np.float16)])
    return path, {"x": floats(WIDTH, dtype=np.float16)}


def fixed_batch(folder: Path) -> Made:
    """A convolution that takes one picture a call."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], kernel_shape=[3, 3]),
        helper.make_node("GlobalAveragePool", ["c"], ["p"]),
        helper.make_node("Reshape", ["p", "shape"], ["y"]),
    ]
    shape = numpy_helper.from_array(np.array([1, 8], np.int64), "shape")
    inputs, outputs = [value("x", TensorProto.FLOAT, 1, 3, 10, 10)], [value("y", TensorProto.FLOAT, 1, 8)]
    return save(folder, nodes, inputs, outputs, [weights("w", 8, 3, 3, 3), shape]), {"x": floats(3, 10, 10)}


def any_size(folder: Path, pixels: int | None = None) -> Made:
    """A convolution and the mean over the picture; with `pixels`, a sum over so many of them, whatever its size."""
    mean = [helper.make_node("ReduceMean", ["c", "axes"], ["y"], keepdims=0)]
    if pixels:
        mean = [
            helper.make_node("ReduceSum", ["c", "axes"], ["sum"], keepdims=0),
            helper.make_node("Div", ["sum", "pixels"], ["y"]),
        ]
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]), *mean]
    stored = [numpy_helper.from_array(np.array([2, 3], np.int64), "axes")]
    stored += [numpy_helper.from_array(np.array(pixels or 1, np.float32), "pixels")]
    stored += [numpy_helper.from_array(np.linspace(-1, 1, 8 * 27, dtype=np.float32).reshape(8, 3, 3, 3), "w")]
    inputs = [value("x", TensorProto.FLOAT, "n", 3, "height", "width")]
    return save(folder, nodes, inputs, [value("y", TensorProto.FLOAT, "n", 8)], stored), {"x": floats(3, 10, 10)}


def text_labels(folder: Path) -> Made:
    """A linear classifier that answers with texts, as scikit-learn's exports do, with its ZipMap."""
    classifier = helper.make_node(
        "LinearClassifier",
        ["x"],
        ["label", "scores"],
        domain="ai.onnx.ml",
        coefficients=RANDOM.standard_normal(3 * WIDTH).tolist(),
        intercepts=[0.0, 0.1, -0.1],
        classlabels_strings=["cat", "dog", "owl"],
        multi_class=1,
        post_transform="SOFTMAX",
    )
    zipmap = helper.make_node(
        "ZipMap", ["scores"], ["chances"], domain="ai.onnx.ml", classlabels_strings=["cat", "dog", "owl"]
    )
    chances = helper.make_sequence_type_proto(
        helper.make_map_type_proto(TensorProto.STRING, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    )
    outputs = [value("label", TensorProto.STRING, "n"), helper.make_value_info("chances", chances)]
    inputs = [value("x", TensorProto.FLOAT, "n", WIDTH)]
    path = save(folder, [classifier, zipmap], inputs, outputs, [], (("", 18), ("ai.onnx.ml", 3)))
    return path, {"x": floats(WIDTH)}


def state(folder: Path) -> Made:
    """A recurrent step: a sequence, a state whose batch is the second axis, and a scalar. There is no batch axis."""
    nodes = [
        helper.make_node("Mul", ["x", "gain"], ["g"]),
        helper.make_node("GRU", ["g", "w", "r", "", "", "h"], ["", "h_next"], hidden_size=WIDTH),
        helper.make_node("Squeeze", ["h_next"], ["y"]),
    ]
    inputs = [
        value("x", TensorProto.FLOAT, "time", 1, 8),
        value("h", TensorProto.FLOAT, 1, 1, WIDTH),
        value("gain", TensorProto.FLOAT),
    ]
    outputs = [value("y", TensorProto.FLOAT, WIDTH), value("h_next", TensorProto.FLOAT, 1, 1, WIDTH)]
    path = save(folder, nodes, inputs, outputs, [weights("w", 1, 3 * WIDTH, 8), weights("r", 1, 3 * WIDTH, WIDTH)])
    return path, {"x": floats(5, 1, 8), "h": floats(1, 1, WIDTH), "gain": np.abs(floats())}


def above_two_gigabytes(folder: Path, side: int = 16_400) -> Made:
    """Two products with a node between that does nothing; the weights, in a second file, fit no message."""
    tensors = []  # of the side times itself, times four bytes, twice: 2.15 GB
    with (folder / "weights.bin").open("wb") as file:
        for name in ("w", "v"):
            tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[side, side])
            tensor.data_location = TensorProto.EXTERNAL
            place = {"location": "weights.bin", "offset": file.tell(), "length": 4 * side * side}
            for key, told in place.items():
                tensor.external_data.add(key=key, value=str(told))
            (np.eye(side, dtype=np.float32) * 2).tofile(file)
            tensors.append(tensor)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Identity", ["h"], ["same"]),
        helper.make_node("MatMul", ["same", "v"], ["y"]),
    ]
    inputs, outputs = [value("x", TensorProto.FLOAT, "n", side)], [value("y", TensorProto.FLOAT, "n", side)]
    return save(folder, nodes, inputs, outputs, tensors), {"x": floats(side)}


MODELS: tuple[Callable[[Path], Made], ...] = (
    two_inputs,
    int64_input,
    loop,
    external_data,
    float16,
    fixed_batch,
    text_labels,
    state,
)
