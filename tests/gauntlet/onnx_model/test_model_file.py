"""A model that is too large for one file keeps its weights, however often it is written and wherever it is copied."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_text
import pretrained_models
import pytest
from onnx import numpy_helper

from gauntlet.core.errors import StageError
from gauntlet.onnx_model import model_file
from gauntlet.onnx_model.model_file import (
    copy_model,
    model_files,
    read_for_editing,
    read_graph,
    read_model,
    write_model,
)
from gauntlet.runtime.session import open_session


def test_large_model_keeps_its_weights_when_it_is_written_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_file, "MAX_ONE_FILE_BYTES", 4000)  # two gigabytes would say the same, slowly
    proto = onnx_text.model("matmul (float[n,64] x) => (float[n,64] y) <float[64,64] w> { y = MatMul(x, w) }")
    weights, path = numpy_helper.to_array(proto.graph.initializer[0]), tmp_path / "model.onnx"
    for _ in range(2):
        (data,) = write_model(proto, path)
        assert model_files(path) == (path, data)
        assert np.array_equal(numpy_helper.to_array(read_model(path).graph.initializer[0]), weights)
    assert not onnx.external_data_helper.uses_external_data(proto.graph.initializer[0])


def test_copy_has_its_weights_beside_it_under_its_own_name(tmp_path: Path) -> None:
    model, samples = pretrained_models.external_data(tmp_path)
    target = tmp_path / "copies" / "model.onnx"
    target.parent.mkdir()
    copy_model(model, target)
    assert model_files(target) == (target, target.with_name("model.onnx.data"))
    onnx.checker.check_model(target)
    first, second = (open_session(file).run(None, samples)[0] for file in (model, target))
    assert np.array_equal(first, second)


def test_copy_is_refused_when_the_weights_lie_elsewhere(tmp_path: Path) -> None:
    model, _ = pretrained_models.external_data(tmp_path)
    (tmp_path / "weights" / "all.bin").rename(tmp_path / "all.bin")
    with pytest.raises(StageError, match=r"weights/all\.bin' is missing"):
        copy_model(model, tmp_path / "model.onnx")


EXTERNAL = """<ir_version: 9, opset_import: ["" : 17, "own" : 1]>
g (float[1,2] x) => (float[1,2] y) { y = own.F(x) }
<domain: "own", opset_import: ["" : 17]> F (a) => (b) { c = Constant <value = float[1,2] {1.0, 2.0}> ()
 b = Add(a, c) }"""


def externalize(tensor: onnx.TensorProto, location: str) -> onnx.TensorProto:
    tensor.ClearField("float_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", location), ("length", "8")):
        tensor.external_data.add(key=key, value=value)
    return tensor


KINDS, WEIGHT = onnx.AttributeProto, {"data_type": 1, "dims": [1, 2]}
HIDDEN: dict[str, Callable[[onnx.ModelProto], onnx.TensorProto]] = {
    "function": lambda proto: proto.functions[0].node[0].attribute[0].t,
    "default": lambda proto: proto.functions[0].attribute_proto.add(name="w", type=KINDS.TENSOR).t,
    "graph": lambda proto: (
        proto.functions[0].node[1].attribute.add(name="body", type=KINDS.GRAPH).g.initializer.add(**WEIGHT)
    ),
    "sparse": lambda proto: proto.graph.sparse_initializer.add().values,
    "training": lambda proto: proto.training_info.add().algorithm.initializer.add(**WEIGHT),
}
"""Where a tensor may be."""


@pytest.mark.parametrize("hidden", HIDDEN.values(), ids=HIDDEN)
@pytest.mark.parametrize("place", ["../secret.bin", "/etc/hostname"])
def test_external_data_outside_the_folder_is_found_wherever_it_hides(
    tmp_path: Path, hidden: Callable[[onnx.ModelProto], onnx.TensorProto], place: str
) -> None:
    (tmp_path / "secret.bin").write_bytes(bytes(8))
    (tmp_path / "model").mkdir()
    proto, path = onnx.parser.parse_model(EXTERNAL), tmp_path / "model" / "m.onnx"
    externalize(hidden(proto), place)
    path.write_bytes(proto.SerializeToString())
    assert model_file.invalid_external_locations(proto, path.parent) == [place]
    with pytest.raises(StageError, match=r"m\.onnx: its external data .* outside the model's folder\. Fix: put"):
        model_file.read_graph_with_local_data(path)


def test_external_data_inside_a_function_travels_with_a_copy(tmp_path: Path) -> None:
    proto, path = onnx.parser.parse_model(EXTERNAL), tmp_path / "m.onnx"
    np.array([1, 2], np.float32).tofile(tmp_path / "w.bin")
    externalize(HIDDEN["function"](proto), "w.bin")
    path.write_bytes(proto.SerializeToString())
    (tmp_path / "copy").mkdir()
    copy_model(path, tmp_path / "copy" / "c.onnx")
    session = open_session(tmp_path / "copy" / "c.onnx")
    assert session.run(None, {"x": np.zeros((1, 2), np.float32)})[0].tolist() == [[1, 2]]


@pytest.mark.parametrize(
    "entries",
    [
        {"location": "w.bin", "offset": "first"},
        {"location": "w.bin", "length": "1e3"},
        {"offset": "0"},
        {"location": "w\0.bin"},
        {"location": "w" * 300},
    ],
    ids=["offset", "length", "no location", "null byte", "long name"],
)
@pytest.mark.parametrize("read", [read_model, lambda path: copy_model(path, path.with_name("copy.onnx"))])
def test_damaged_place_of_external_data_is_refused(
    tmp_path: Path, entries: dict[str, str], read: Callable[[Path], object]
) -> None:
    proto = onnx_text.model("m (float[4] x) => (float[4] y) <float[4] w> { y = Add(x, w) }")
    tensor = externalize(proto.graph.initializer[0], "w.bin")
    del tensor.external_data[:]
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
    (tmp_path / "w.bin").write_bytes(bytes(16))
    (tmp_path / "model.onnx").write_bytes(proto.SerializeToString())
    with pytest.raises(StageError, match="external data"):
        read(tmp_path / "model.onnx")


def test_graph_of_a_large_model_is_changed_without_its_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, samples = pretrained_models.external_data(tmp_path)
    weights = tmp_path / "weights" / "all.bin"
    before, told = open_session(model).run(None, samples)[0], weights.stat()
    monkeypatch.setattr(model_file, "MAX_ONE_FILE_BYTES", 4000)
    proto = read_for_editing(model)
    assert not any(tensor.raw_data for tensor in proto.graph.initializer)
    proto.producer_name = "changed"
    assert write_model(proto, model) == [weights]
    assert read_graph(model).producer_name == "changed"
    assert (weights.stat().st_ino, weights.stat().st_mtime_ns) == (told.st_ino, told.st_mtime_ns)
    assert np.array_equal(open_session(model).run(None, samples)[0], before)


def test_name_that_is_not_utf_8_is_one_error(tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.onnx"))
    onnx_text.save(path, "m (float[N] x) => (float[N] y) { y = Relu(x) }")
    with pytest.raises(StageError, match="the path is not UTF-8, and ONNX Runtime opens no other"):
        read_graph(path)
