"""A model that is too large for one file keeps its weights, however often it is written and wherever it is copied."""

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
