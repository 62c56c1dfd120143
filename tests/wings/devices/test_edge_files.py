"""A bundle for a device: the converted model gives its golden outputs, in the examples too."""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_text
import onnxruntime
import pytest
from harness import SHORT
from needs import cpp_compiler
from served_bundles import brightness_bundle, spoil_golden_outputs, write_bundle

import gauntlet
from configs.brought_model import infer_config
from configs.loader import validated
from configs.schema import PipelineConfig
from flows.cli.main import main
from gauntlet.bundle.bundle import Bundle
from gauntlet.core.artifact import sha256_of
from gauntlet.core.errors import ConfigError, StageError
from gauntlet.core.run_report import RunReport
from gauntlet.core.signature import signature_from_graph
from gauntlet.runtime.operator_libraries import with_operator_libraries
from gauntlet.runtime.session import open_session
from wings.devices.deliveries import edge, trainable, web
from wings.devices.edge_files import MODEL_FILE, OPERATORS_FILE, write_edge_files

pytestmark = pytest.mark.slow
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


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, int]]:
    """The folders for two models, and how many operators each needs."""
    root = tmp_path_factory.mktemp("edge")
    bundles = {"image": brightness_bundle(root / "a"), "two-inputs": two_inputs(root / "b")}
    return {name: (root / name, files_of(bundle, root / name)) for name, bundle in bundles.items()}


@pytest.mark.parametrize("name", ["image", "two-inputs"])
def test_python_example_runs_the_golden_sample(made, name: str) -> None:
    folder, _ = made[name]
    done = run(folder, sys.executable, "example.py")
    assert (done.returncode, done.stderr) == (0, "")
    assert re.match(r"y: shape \(1, \d\), largest difference \S+, allowed 0\.02", done.stdout)
    assert len((folder / "example.py").read_text().splitlines()) <= 45


def test_python_example_fails_where_the_outputs_are_others(made, tmp_path: Path) -> None:
    folder = shutil.copytree(made["image"][0], tmp_path / "edge")
    file = folder / "golden" / "output-0.bin"
    file.write_bytes((np.frombuffer(file.read_bytes(), np.float32) + 1).tobytes())
    assert run(folder, sys.executable, "example.py").returncode == 1


def test_list_has_the_operators_that_are_left_after_optimization(made) -> None:
    folder, count = made["image"]
    text = (folder / OPERATORS_FILE).read_text()
    assert count == 3
    for operator in ("GlobalAveragePool", "Reshape", "Gemm"):
        assert operator in text
    assert "float" in text  # the types, so that a build can leave out the others
    assert str(folder.parent) not in text
    files = {MODEL_FILE, OPERATORS_FILE, "README.md", "contract.json", "example.cc", "example.py", "golden"}
    assert {path.name for path in folder.iterdir()} == files


def test_model_is_in_the_format_of_minimal_builds(made) -> None:
    model = made["image"][0] / MODEL_FILE
    assert model.read_bytes()[4:8] == b"ORTM"
    onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])


def test_model_that_gives_other_outputs_afterwards_is_not_delivered(tmp_path: Path) -> None:
    bundle = brightness_bundle(tmp_path / "b")
    spoil_golden_outputs(bundle)
    with pytest.raises(StageError, match=r"--edge: after the conversion to model\.ort, golden output 'y' differs by"):
        files_of(bundle, tmp_path / "edge")
    assert not (tmp_path / "edge").exists()


def test_model_of_texts_is_refused(tmp_path: Path) -> None:
    proto = onnx_text.model("texts (string[n] x) => (string[n] y) { y = Identity(x) }")
    inputs = {"x": np.array(["a", "b"])}
    bundle = write_bundle(tmp_path / "b", proto.SerializeToString(), signature_from_graph(proto), inputs, name="texts")
    with pytest.raises(ConfigError, match=r"--edge: 'x' is str\d*; allowed are bool, float16"):
        files_of(bundle, tmp_path / "edge")


@pytest.mark.parametrize("name", ["image", "two-inputs"])
def test_cpp_example_runs_the_golden_sample_and_tells_another(made, tmp_path: Path, name: str) -> None:
    folder = shutil.copytree(made[name][0], tmp_path / "edge")
    library = next((Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so.*"))
    (folder / "libonnxruntime.so.1").symlink_to(library)  # the name by which the loader looks for it
    built = run(folder, *cpp_compiler(), "example.cc", str(library), f"-Wl,-rpath,{folder}", "-o", "example")
    assert built.returncode == 0, built.stderr
    done = run(folder, "./example")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("y: largest difference")
    golden = folder / "golden" / "output-0.bin"
    golden.write_bytes(bytes(len(golden.read_bytes())))
    assert run(folder, "./example").returncode == 1


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


@pytest.fixture
def bundle(packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bundle:
    """The bundle of a trained model, in a home without environments."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GAUNTLET_HOME", str(tmp_path / ".gauntlet"))
    return Bundle.open(packed)


def printed(*command: str) -> list[str]:
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_device_gets_files_that_prove_themselves(bundle: Bundle) -> None:
    lines = edge(bundle, Path("device"))
    assert re.fullmatch(r"device: model\.ort, .*, \d+ operators", lines[0])
    printed("device/example.py")
    with pytest.raises(ConfigError, match=r"device: it exists. Fix: remove it, or choose another --edge"):
        edge(bundle, Path("device"))


def test_page_needs_the_runtime_for_browsers_and_says_how_to_install_it(bundle: Bundle) -> None:
    with pytest.raises(ConfigError, match=r"--web: its environment is not installed; .*: gauntlet targets install web"):
        web(bundle, Path("page"))
    assert not Path("page").exists()


def test_model_can_be_taught_new_labels(bundle: Bundle) -> None:
    assert re.match(r"learn: training_step\.onnx, 10 classes of \d+ features", trainable(bundle, Path("learn"))[0])
    inputs, outputs = bundle.golden().inputs, bundle.golden().outputs[bundle.contract.signature.primary_output or ""]
    np.savez("samples.npz", **inputs, labels=(outputs.argmax(1) + 1) % 10)
    losses = [float(line.rpartition(" ")[2]) for line in printed("learn/example.py", "samples.npz", "5", "0.01")[:-1]]
    assert losses[-1] < losses[0]
