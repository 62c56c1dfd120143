"""The reductions inside the graph, for every rank, empty tensors included."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tasks.calibrate.taps import REDUCTIONS, reduced

SHAPES = {
    "scalar": [],
    "vector": [5],
    "matrix": [2, 3],
    "cube": [2, 3, 4],
    "image": [2, 3, 4, 5],
    "empty": [2, 0, 3, 3],
    "hollow": [2, 3, 0, 3],
}


@pytest.mark.parametrize("opset", [11, 18])
def test_reductions_are_numpys_for_every_rank(tmp_path: Path, opset: int) -> None:
    known = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in SHAPES.items()}
    unknown = helper.make_tensor_value_info("copy", TensorProto.FLOAT, None)
    nodes = [helper.make_node("Identity", [name], [f"{name}-out"]) for name in SHAPES]
    nodes.append(helper.make_node("Identity", ["image"], ["copy"]))
    outputs = [helper.make_tensor_value_info(f"{name}-out", TensorProto.FLOAT, shape) for name, shape in SHAPES.items()]
    graph = helper.make_graph(nodes, "ranks", list(known.values()), outputs, value_info=[unknown])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    onnx.save(proto, tmp_path / "ranks.onnx")

    rng = np.random.default_rng(0)
    arrays = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}
    values = known | {"copy": unknown}
    with reduced(tmp_path / "ranks.onnx", values) as (session, names):
        answers = iter(session.run(names, arrays))
    found = {name: dict(zip(REDUCTIONS, answers, strict=False)) for name in values}
    for name, got in found.items():
        array = arrays["image" if name == "copy" else name]
        assert got["Size"] == array.size
        if array.size:
            assert (got["ReduceMin"].item(), got["ReduceMax"].item()) == (array.min(), array.max())
            np.testing.assert_allclose(got["ReduceSum"].item(), array.sum(), rtol=1e-5)


def test_model_with_its_weights_beside_it_is_opened(tmp_path: Path) -> None:
    shapes = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("x", "y")]
    weight = numpy_helper.from_array(np.array([1, 2], np.float32), "w")
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "beside", shapes[:1], shapes[1:], [weight])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, location="m.onnx.data", size_threshold=0)
    with reduced(tmp_path / "m.onnx", {"y": shapes[1]}) as (session, names):
        low, high, _, size = session.run(names, {"x": np.array([3, 3], np.float32)})
    assert (low.item(), high.item(), size.item()) == (4, 5, 2)
    assert {path.name for path in tmp_path.iterdir()} == {"m.onnx", "m.onnx.data"}
