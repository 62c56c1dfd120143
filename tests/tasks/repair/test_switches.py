"""The model with switches beside the files that ONNX Runtime's quantiser writes: the same answers, whatever is on."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from tasks.quantize.static import StaticInt8
from tasks.ranges import Ranges
from tasks.repair.switches import KEEP_PAIRS, Switchable
from tasks.runtime.session import open_session

RECIPE = StaticInt8()
NODES = ("first", "second", "third", "sum", "pool", "flat", "last")
"""Those of the network below that can be quantised."""


def network() -> onnx.ModelProto:
    """Return a small network; the quantiser drops its Relu and its Clip, whose limits are inputs."""
    rng = np.random.default_rng(0)
    shapes = {"w1": (8, 3, 3, 3), "b1": (8,), "w2": (8, 8, 3, 3), "w3": (8, 8, 3, 3), "w4": (10, 8), "b4": (10,)}
    stored = {name: rng.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}
    stored |= {"low": np.float32(0), "high": np.float32(6)}
    node = helper.make_node
    nodes = [
        node("Conv", ["input", "w1", "b1"], ["a"], name="first", pads=[1] * 4),
        node("Relu", ["a"], ["b"], name="relu"),
        node("Conv", ["b", "w2"], ["c"], name="second", pads=[1] * 4),
        node("Clip", ["c", "low", "high"], ["d"], name="clip"),
        node("Conv", ["d", "w3"], ["e"], name="third", pads=[1] * 4),
        node("Add", ["e", "b"], ["f"], name="sum"),
        node("GlobalAveragePool", ["f"], ["g"], name="pool"),
        node("Flatten", ["g"], ["h"], name="flat"),
        node("Gemm", ["h", "w4", "b4"], ["y"], name="last", transB=1),
    ]
    value, kind = helper.make_tensor_value_info, TensorProto.FLOAT
    kept = [numpy_helper.from_array(array, name) for name, array in stored.items()]
    graph = helper.make_graph(nodes, "g", [value("input", kind, ["n", 3, 8, 8])], [value("y", kind, ["n", 10])], kept)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def answers(model: Path, samples: dict[str, npt.NDArray[np.float32]]) -> npt.NDArray[np.float32]:
    found: npt.NDArray[np.float32] = open_session(model, level="off", settings=KEEP_PAIRS).run(None, samples)[0]
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("switches")


@pytest.fixture(scope="module")
def ranges(folder: Path) -> Ranges:
    rng = np.random.default_rng(1)
    samples = {"input": rng.normal(0, 1, (20, 3, 8, 8)).astype(np.float32)}
    proto = network()
    onnx.save(proto, folder / "float.onnx")
    for node in proto.graph.node[:-1]:
        proto.graph.output.append(helper.make_tensor_value_info(node.output[0], TensorProto.FLOAT, None))
    session = open_session(proto.SerializeToString(), level="off")
    seen = samples | dict(zip([o.name for o in session.get_outputs()], session.run(None, samples), strict=True))
    known = {name: (float(array.min()), float(array.max())) for name, array in seen.items()}
    np.savez(folder / "samples.npz", **samples)
    return Ranges(images=20, methods={RECIPE.method.name: known})


@pytest.fixture(scope="module")
def switchable(folder: Path, ranges: Ranges) -> Switchable:
    source = folder / "float.onnx"
    RECIPE.write(source, source, ranges, folder / "quantized.onnx")
    return Switchable(folder / "quantized.onnx", source)


@settings(max_examples=10, deadline=None)
@given(left_out=st.sets(st.sampled_from(NODES)))
def test_switches_answer_what_the_quantiser_s_file_does_for_any_choice_of_nodes(
    folder: Path, ranges: Ranges, switchable: Switchable, left_out: set[str]
) -> None:
    assert switchable.nodes == set(NODES)
    samples = dict(np.load(folder / "samples.npz"))
    source, file = folder / "float.onnx", folder / "some.onnx"
    RECIPE.write(source, source, ranges, file, float_nodes=frozenset(left_out))
    found = switchable.run(samples, switchable.nodes - left_out)["y"]
    np.testing.assert_array_equal(found, answers(file, samples))
    is_float = np.allclose(found, answers(source, samples), atol=1e-5)
    assert is_float == (left_out == set(NODES))
