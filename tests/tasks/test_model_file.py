"""A model that is too large for one file keeps its weights, however often it is written."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tasks import model_file
from tasks.model_file import files_of, read_model, write_model


def test_large_model_keeps_its_weights_when_it_is_written_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_file, "MAX_ONE_FILE_BYTES", 4000)  # two gigabytes would say the same, slowly
    weights = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 64]) for name in "xy"]
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "g", ends[:1], ends[1:], [numpy_helper.from_array(weights, "w")])
    proto, path = helper.make_model(graph), tmp_path / "model.onnx"
    for _ in range(2):
        (data,) = write_model(proto, path)
        assert files_of(path) == (path, data)
        assert np.array_equal(numpy_helper.to_array(read_model(path).graph.initializer[0]), weights)
    assert not onnx.external_data_helper.uses_external_data(proto.graph.initializer[0])
