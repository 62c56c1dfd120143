"""A bundle for a device: the converted model gives its golden outputs, in the examples too."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx_text
import onnxruntime
import pytest
from served_bundles import brightness_bundle, write_bundle

from gauntlet.bundle.bundle import GOLDEN, Bundle, seal
from gauntlet.bundle.edge_files import MODEL_FILE, OPERATORS_FILE, write_edge_files
from gauntlet.core.errors import ConfigError, StageError
from gauntlet.core.signature import signature_from_graph

TWO_INPUTS = """two (int64[n,4] x, float16[n,4] h) => (float16[n,4] y, int64[n] best) <float[4,4] w> {
  f = Cast<to=1>(x) m = MatMul(f, w) s = Cast<to=10>(m) y = Add(s, h) best = ArgMax<axis=1, keepdims=0>(m)
}"""


def two_inputs(folder: Path) -> Path:
    proto = onnx_text.model(TWO_INPUTS)
    inputs = {"x": np.arange(20).reshape(5, 4) % 7, "h": np.ones((5, 4), np.float16)}
    return write_bundle(folder, proto.SerializeToString(), signature_from_graph(proto), inputs, name="two")


def files_of(bundle: Path, target: Path) -> int:
    return write_edge_files(Bundle.open(bundle), target)


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("make", [brightness_bundle, two_inputs], ids=["image", "two-inputs"])
def test_python_example_runs_the_golden_sample(tmp_path: Path, make) -> None:
    files_of(make(tmp_path / "b"), tmp_path / "edge")
    done = run(tmp_path / "edge", sys.executable, "example.py")
    assert (done.returncode, done.stderr) == (0, "")
    assert re.match(r"y: shape \(1, \d\), largest difference \S+, allowed 0\.02", done.stdout)
    assert len((tmp_path / "edge" / "example.py").read_text().splitlines()) <= 45


def test_python_example_fails_where_the_outputs_are_others(tmp_path: Path) -> None:
    files_of(brightness_bundle(tmp_path / "b"), tmp_path / "edge")
    file = tmp_path / "edge" / "golden" / "output-0.bin"
    file.write_bytes((np.frombuffer(file.read_bytes(), np.float32) + 1).tobytes())
    assert run(tmp_path / "edge", sys.executable, "example.py").returncode == 1


def test_list_has_the_operators_that_are_left_after_optimization(tmp_path: Path) -> None:
    count = files_of(brightness_bundle(tmp_path / "b"), tmp_path / "edge")
    text = (tmp_path / "edge" / OPERATORS_FILE).read_text()
    assert count == 3
    for operator in ("GlobalAveragePool", "Reshape", "Gemm"):
        assert operator in text
    assert "float" in text  # the types, so that a build can leave out the others
    assert {path.name for path in (tmp_path / "edge").iterdir()} == {
        MODEL_FILE,
        OPERATORS_FILE,
        "README.md",
        "contract.json",
        "example.cc",
        "example.py",
        "golden",
    }


def test_model_is_in_the_format_of_minimal_builds(tmp_path: Path) -> None:
    files_of(brightness_bundle(tmp_path / "b"), tmp_path / "edge")
    assert (tmp_path / "edge" / MODEL_FILE).read_bytes()[4:8] == b"ORTM"
    onnxruntime.InferenceSession(str(tmp_path / "edge" / MODEL_FILE), providers=["CPUExecutionProvider"])


def test_model_that_gives_other_outputs_afterwards_is_not_delivered(tmp_path: Path) -> None:
    bundle = brightness_bundle(tmp_path / "b")
    with np.load(bundle / GOLDEN) as file:
        wrong = {name: file[name] + (5 if name.startswith("outputs/") else 0) for name in file.files}
    np.savez(bundle / GOLDEN, **wrong)
    seal(bundle)
    with pytest.raises(StageError, match=r"--edge: after the conversion to model\.ort, golden output 'y' differs by"):
        files_of(bundle, tmp_path / "edge")
    assert not (tmp_path / "edge").exists()


def test_model_of_texts_is_refused(tmp_path: Path) -> None:
    proto = onnx_text.model("texts (string[n] x) => (string[n] y) { y = Identity(x) }")
    inputs = {"x": np.array(["a", "b"])}
    bundle = write_bundle(tmp_path / "b", proto.SerializeToString(), signature_from_graph(proto), inputs, name="texts")
    with pytest.raises(ConfigError, match=r"--edge: 'x' is str\d*; allowed are bool, float16"):
        files_of(bundle, tmp_path / "edge")


@pytest.mark.parametrize("make", [brightness_bundle, two_inputs], ids=["image", "two-inputs"])
def test_cpp_example_runs_the_golden_sample(tmp_path: Path, make) -> None:
    include, compiler = os.environ.get("ONNXRUNTIME_INCLUDE"), shutil.which("g++")
    if include is None or compiler is None:
        pytest.skip("needs g++, and ONNXRUNTIME_INCLUDE with the folder of onnxruntime_cxx_api.h")
    files_of(make(tmp_path / "b"), tmp_path / "edge")
    library = next((Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so.*"))
    warnings = ("-Wall", "-Wextra", "-Werror=format")
    built = run(
        tmp_path / "edge", compiler, "-std=c++17", *warnings, "example.cc", "-isystem", include, str(library),
        f"-Wl,-rpath,{library.parent}", "-o", "example",
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    done = run(tmp_path / "edge", "./example")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("y: largest difference")
