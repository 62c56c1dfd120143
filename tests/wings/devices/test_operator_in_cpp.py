"""The example of an operator in C++ is compiled, registered, judged by every gate and shipped."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_text
import pytest
from harness import SHORT
from needs import cpp_compiler

import gauntlet
from configs.brought_model import infer_config
from configs.loader import validated
from configs.schema import PipelineConfig
from flows.cli.main import main
from gauntlet.core.artifact import sha256_of
from gauntlet.core.errors import StageError
from gauntlet.core.run_report import RunReport
from gauntlet.runtime.operator_libraries import with_operator_libraries
from gauntlet.runtime.session import open_session

SOURCE = Path(__file__).parents[3] / "examples" / "operator" / "gate.cc"
GATE = """m (float[n,8] x) => (float[n,4] y) <float[8,4] w> {
  m = MatMul(x, w)  y = example.Gate<threshold = 0.5>(m) }"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tmp_path_factory.mktemp("operator") / "libgate.so"
    words = (*cpp_compiler(), "-O2", "-shared", "-fPIC", str(SOURCE), "-o", str(built))
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return built


@pytest.fixture
def model(tmp_path: Path) -> Path:
    onnx.save(onnx_text.model(GATE, domains={"example": 1}), tmp_path / "gated.onnx")
    return tmp_path / "gated.onnx"


def test_operator_computes_where_its_library_is_registered(library: Path, model: Path) -> None:
    weights = onnx.numpy_helper.to_array(onnx.load(model).graph.initializer[0])
    x = np.random.default_rng(0).standard_normal((5, 8)).astype(np.float32)
    with with_operator_libraries((library,)):
        [y] = open_session(model).run(None, {"x": x})
    expected = x @ weights
    assert np.allclose(y, np.where(np.abs(expected) >= 0.5, expected, 0), atol=1e-5)
    assert 0 < np.count_nonzero(y) < y.size
    with pytest.raises(StageError, match="Gate"):
        open_session(model)


@pytest.mark.slow
def test_model_with_the_operator_passes_every_gate_and_is_shipped(
    run: Callable[[PipelineConfig], RunReport], library: Path, model: Path, tmp_path: Path
) -> None:
    samples = np.random.default_rng(0).standard_normal((90, 8)).astype(np.float32)
    np.savez(tmp_path / "samples.npz", x=samples)
    with with_operator_libraries((library,)):
        found = infer_config(model, tmp_path / "samples.npz", None, {})
    settings = (*SHORT, f"operator_libraries=[{library}]", "optimize=[]", "quantize=[{kind: dynamic}]")
    report = run(validated(model, found.values, settings))
    assert report.verdict == "passed", report.reason
    assert main(["bundle", "--out", str(tmp_path / "gated.zip")]) == 0
    with with_operator_libraries((library,)):
        shipped = gauntlet.load(tmp_path / "gated.zip")
        [named] = shipped.bundle.contract.signature.operator_libraries
        assert (named.name, named.sha256) == ("libgate.so", sha256_of([library]))
        assert list(shipped.run({"x": samples[:2]}))
