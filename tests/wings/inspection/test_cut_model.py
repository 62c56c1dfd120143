"""A part of a model, cut at tensors inside it, is what the whole computes there; everything else is refused."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from conftest import Trained
from harness import called
from hypothesis import given
from hypothesis import strategies as st

from gauntlet.core.errors import ConfigError, StageError
from gauntlet.core.signature import Signature
from gauntlet.onnx_model import model_file
from gauntlet.runtime.session import open_session
from wings.inspection.library import cut_model as module
from wings.inspection.library.cut_model import cut_model

CHAIN = """<ir_version: 8, opset_import: ["": 17]> m (float[n,4] x, float[n,4] z) => (float[n,4] y)
<float[4,4] w = {1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16}>
{ a = MatMul(x, w)  b = Relu(a)  c = Add(b, z)  y = Tanh(c) }"""
CAPTURING = """<ir_version: 8, opset_import: ["": 17]> m (float[n,4] x, bool on) => (float[n,4] y)
{ a = Neg(x)  b = Exp(x)
  c = If(on) <then_branch = g () => (float[n,4] t) { t = Abs(a) }, else_branch = h () => (float[n,4] e) { e = Neg(a) }>
  y = Add(c, b) }"""
UNTYPED = """<ir_version: 8, opset_import: ["": 17, "mine": 1]> m (float[n,4] x) => (float[n,4] y)
{ a = mine.Secret(x)  y = Neg(a) }"""

BEYOND = """<ir_version: 8, opset_import: ["": 17]> m (int64[n] x) => (float[n,4] y)
<float[1,4] w = {1,2,3,4}, int64 one = {1}> { i = Add(x, one)  a = Gather(w, i)  y = Neg(a) }"""


def written(folder: Path, text: str) -> Path:
    path = folder / "model.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    return path


def test_outputs_are_what_the_whole_computes_there(tmp_path: Path) -> None:
    found = cut_model(written(tmp_path, CHAIN), tmp_path / "head.onnx", (), ("b",))
    assert (found.nodes, found.nodes_before) == (2, 4)
    assert found.inputs == {"x": "float[n, 4]"}
    assert found.outputs == {"b": "float[n, 4]"}
    assert not found.not_compared
    (values,) = open_session(found.output).run(None, {"x": np.float32([[1, 0, 0, -1]])})
    assert values.tolist() == [[0, 0, 0, 0]]
    assert [tensor.name for tensor in onnx.load(found.output).graph.initializer] == ["w"]


def test_inputs_are_tensors_inside_and_what_is_still_needed_of_the_models(tmp_path: Path) -> None:
    found = cut_model(written(tmp_path, CHAIN), tmp_path / "tail.onnx", ("b",), ())
    assert list(found.inputs) == ["b", "z"]
    assert found.nodes == 2
    assert not onnx.load(found.output).graph.initializer


def test_tensors_that_bodies_read_come_along(tmp_path: Path) -> None:
    """ONNX's own extractor leaves them out."""
    model = written(tmp_path, CAPTURING)
    found = cut_model(model, tmp_path / "part.onnx", (), ("c",))
    assert [node.op_type for node in onnx.load(found.output).graph.node] == ["Neg", "If"]
    assert list(cut_model(model, tmp_path / "part.onnx", ("a",), ("c",)).inputs) == ["a", "on"]


@given(cut=st.sampled_from("abc"))
def test_two_parts_make_the_whole(cut: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("parts")
    model = written(folder, CHAIN)
    first = open_session(cut_model(model, folder / "first.onnx", (), (cut,)).output)
    second = open_session(cut_model(model, folder / "second.onnx", (cut,), ()).output)
    feed = {name: np.random.default_rng(0).standard_normal((3, 4), np.float32) for name in "xz"}
    (inner,) = first.run(None, {i.name: feed[i.name] for i in first.get_inputs()})
    parts = second.run(None, {i.name: {**feed, cut: inner}[i.name] for i in second.get_inputs()})
    assert np.array_equal(parts, open_session(model).run(None, feed))


def test_signature_of_the_whole_is_not_the_parts(tmp_path: Path, trained: Trained) -> None:
    model = trained.path
    name = next(node.output[0] for node in onnx.load(model).graph.node if node.op_type == "Relu")
    found = cut_model(model, tmp_path / "part.onnx", (), (name,))
    assert Signature.find(onnx.load(model)) is not None
    assert Signature.find(onnx.load(found.output)) is None
    assert not found.not_compared


@pytest.mark.parametrize(
    ("text", "inputs", "outputs", "message"),
    [
        (CHAIN, (), ("bb",), r"no tensor 'bb' \(similar: b.*\)\. Fix: see gauntlet inspect"),
        (CHAIN, ("w",), (), r"no tensor 'w'"),
        (CHAIN, ("c",), ("b",), r"no output needs 'c'\. Fix: choose a tensor that lies before the outputs"),
        (UNTYPED, (), ("a",), r"ONNX infers no type for 'a'\. Fix: choose a tensor before or behind it"),
    ],
)
def test_cut_that_is_none_is_refused(
    tmp_path: Path, text: str, inputs: tuple[str, ...], outputs: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        cut_model(written(tmp_path, text), tmp_path / "part.onnx", inputs, outputs)
    assert not (tmp_path / "part.onnx").exists()


def test_part_that_differs_from_the_whole_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = module._part

    def wrong(*arguments: object) -> onnx.ModelProto:
        part = right(*arguments)  # type: ignore[arg-type]
        part.graph.node[-1].op_type = "Neg"
        return part

    monkeypatch.setattr(module, "_part", wrong)
    with pytest.raises(StageError, match="cut out, b differs from the whole model's on the same inputs"):
        cut_model(written(tmp_path, CHAIN), tmp_path / "part.onnx", (), ("b",))
    assert not (tmp_path / "part.onnx").exists()


def test_model_that_fails_on_random_inputs_is_cut_and_says_that_it_was_not_compared(tmp_path: Path) -> None:
    found = cut_model(written(tmp_path, BEYOND), tmp_path / "part.onnx", (), ("a",))
    assert found.not_compared.startswith("on random inputs it fails: ")
    assert "Gather" in found.not_compared


def test_weights_that_stay_in_their_files_keep_the_part_in_their_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proto = onnx.parser.parse_model(CHAIN)
    (weights,) = proto.graph.initializer
    weights.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(weights), "w"))  # as bytes
    model = tmp_path / "model.onnx"
    onnx.save(proto, model, save_as_external_data=True, location="weights", size_threshold=0)
    monkeypatch.setattr(model_file, "MAX_ONE_FILE_BYTES", 10)
    (tmp_path / "elsewhere").mkdir()
    with pytest.raises(ConfigError, match=r"the weights stay in .*Fix: write the part to that folder"):
        cut_model(model, tmp_path / "elsewhere" / "part.onnx", (), ("b",))
    assert not list((tmp_path / "elsewhere").iterdir())
    found = cut_model(model, tmp_path / "part.onnx", (), ("b",))
    assert found.not_compared == "its weights are too large"
    (values,) = open_session(found.output).run(None, {"x": np.float32([[1, 0, 0, 0]])})
    assert values.tolist() == [[1, 2, 3, 4]]


MODEL = """<ir_version: 8, opset_import: ["": 17]> m (float[n,4] x) => (float[n,4] y)
{ a = Relu(x)  y = Tanh(a) }"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    onnx.save(onnx.parser.parse_model(MODEL), tmp_path / "model.onnx")
    return tmp_path


def test_part_is_written_and_described(folder: Path) -> None:
    done = called(folder, "cut", "model.onnx", "part.onnx", "--outputs", "a")
    assert done.returncode == 0, done.stderr
    assert "part.onnx  1 of 2 nodes" in done.stdout
    assert "a  float[n, 4]" in done.stdout
    assert "equal to the whole on random inputs, to the bit" in done.stdout
    assert [node.op_type for node in onnx.load(folder / "part.onnx").graph.node] == ["Relu"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("model.onnx", "part.onnx"), "nothing to cut. Fix: give --inputs or --outputs"),
        (("model.onnx", "part.onnx", "--outputs", "b"), "no tensor 'b' (similar: "),
        (("model.onnx", "part.txt", "--outputs", "a"), "part.txt: the result needs a name that ends in .onnx"),
        (("model.onnx", "none/part.onnx", "--outputs", "a"), "no such folder: none"),
        (("model.onnx", "model.onnx", "--outputs", "a"), "this is the model itself. Fix: write to another file"),
        (("other.onnx", "part.onnx", "--outputs", "a"), "other.onnx: no such file"),
    ],
)
def test_wrong_question_is_refused_in_one_line(folder: Path, words: tuple[str, ...], message: str) -> None:
    done = called(folder, "cut", *words)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (folder / "part.onnx").exists()
