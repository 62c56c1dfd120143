"""`gauntlet cut` on the command line."""

from pathlib import Path

import onnx
import pytest
from harness import called

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
        (("model.onnx", "model.onnx", "--outputs", "a"), "this is the model itself. Fix: write the part to another"),
        (("other.onnx", "part.onnx", "--outputs", "a"), "other.onnx: no such file"),
    ],
)
def test_wrong_question_is_refused_in_one_line(folder: Path, words: tuple[str, ...], message: str) -> None:
    done = called(folder, "cut", *words)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (folder / "part.onnx").exists()
