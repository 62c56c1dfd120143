"""What a target did is found out by what it did; models race where they were validated, each within its own limits."""

import math
import sys
from pathlib import Path
from typing import ClassVar

import faulty_models
import numpy as np
import onnx
import onnx_text
import pytest
from gpu_target import GpuTarget, TensorRtTarget
from onnx import numpy_helper
from validated_target import OfFramework, OtherFile, States, failed, look, rounded

from gauntlet.core.errors import StageError
from gauntlet.onnx_model.macs import ModelMacs, read_model_macs
from gauntlet.race.contender import Plan
from gauntlet.race.expected_outputs import ExpectedOutputs
from gauntlet.race.precision import FLOOR_DB, write_bf16_weights
from gauntlet.race.target_examiner import TargetExaminer
from gauntlet.targets import OrtCpu
from gauntlet.targets.base import BaseTarget, Precision

pytestmark = pytest.mark.slow
MACS = {"a": ("Conv", 900), "b": ("Conv", 50), "c": ("Gemm", 50)}


class Broken(BaseTarget):
    """A worker that behaves as it is told."""

    kind: str = "broken"
    code: str
    engine: ClassVar[str] = "gauntlet.runtime.engines.ort"

    def command(self) -> tuple[str, ...]:
        return (sys.executable, "-c", f"import sys, os, time; sys.stdin.readline(); {self.code}")


def test_target_passes_when_it_does_what_it_says(model: Path, inputs: Path, exact: ExpectedOutputs) -> None:
    truth = look(model, OrtCpu(), inputs, exact)
    assert truth.reason is None
    assert truth.macs_share == 1
    assert truth.nodes == {"CPUExecutionProvider": 7}
    assert (truth.stated, truth.effective) == ("f32", "f32")
    assert truth.sqnr_db > 110


def test_session_that_asked_for_cuda_and_got_the_cpu_fails_its_check(
    model: Path, inputs: Path, exact: ExpectedOutputs
) -> None:
    target = GpuTarget()
    if target.unavailable() is None:
        pytest.skip("CUDA runs here")
    truth = look(model, target, inputs, exact)
    assert truth.macs_share == 0
    assert failed(truth) == ["target.macs_share"]
    assert "CUDAExecutionProvider was requested; 7 nodes on CPUExecutionProvider" in str(truth.reason)


def test_target_is_not_examined_further_when_its_session_is_refused(
    model: Path, inputs: Path, exact: ExpectedOutputs
) -> None:
    target = TensorRtTarget()
    if target.unavailable() is None:
        pytest.skip("TensorRT runs here")
    truth = look(model, target, inputs, exact)
    assert "TensorRT" in truth.reason
    assert "\n" not in truth.reason


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("os.kill(os.getpid(), 11)", "was killed by signal 11"),
        ("time.sleep(60)", "no reply to 'load' within 1 s"),
        ("print('rubbish', flush=True); time.sleep(60)", "invalid reply"),
        ("sys.exit('out of memory')", "out of memory"),
    ],
)
def test_worker_that_breaks_is_a_verdict(
    model: Path, inputs: Path, exact: ExpectedOutputs, code: str, told: str
) -> None:
    truth = look(model, Broken(code=code), inputs, exact, timeout_s=1)
    assert told in truth.error
    assert truth.reason == truth.error


def test_answers_are_not_expected_of_a_file_that_is_no_model(tmp_path: Path, inputs: Path) -> None:
    (tmp_path / "no.onnx").write_bytes(b"nothing of the kind")
    with pytest.raises(StageError, match=r"no\.onnx: not a"):
        ExpectedOutputs.of(tmp_path / "no.onnx", inputs, 60)


@pytest.mark.parametrize(
    ("nodes", "share"),
    [
        ({"GPU": [["a", "Conv"], ["b", "Conv"], ["c", "Gemm"]]}, 1),
        ({"CPU": [["a", "Conv"], ["b", "Conv"], ["c", "Gemm"]]}, 0),
        ({"GPU": [["subgraph", ""]], "CPU": [["c", "Gemm"]]}, 0.95),
        ({"GPU": [["subgraph", ""]], "CPU": [["a", "FusedConv"]]}, 0.1),
        ({"GPU": [["subgraph", ""]], "CPU": [["renamed", "FusedConv"]]}, 1 - 0.475),
        ({"GPU": [["subgraph", ""]], "CPU": [["renamed", "MatMul"]]}, 0.95),
        ({"GPU": [["subgraph", ""]], "CPU": [["s", "Shape"], ["t", "Gather"]]}, 1),
        ({"GPU": [["subgraph", ""]], "CPU": [["nobody knows", "LSTM"]]}, math.nan),
        ({}, 0),
    ],
)
def test_share_counts_multiplications_and_not_nodes(nodes, share: float) -> None:
    assert ModelMacs(False, "f32", MACS).shares("GPU", nodes).get("GPU", 0) == pytest.approx(share, nan_ok=True)


def test_share_is_unknown_when_a_node_elsewhere_multiplies_nobody_knows_how_much() -> None:
    """A network for pictures of any size: its convolutions have no number, and its head has one."""
    network = ModelMacs(False, "f32", {"a": ("Conv", None), "head": ("Gemm", 50)})
    assert math.isnan(network.shares("GPU", {"CPU": [["a", "Conv"]], "GPU": [["head", "Gemm"]]})["GPU"])
    assert math.isnan(network.shares("GPU", {"CPU": [["renamed", "FusedConv"]], "GPU": [["head", "Gemm"]]})["GPU"])
    assert network.shares("GPU", {"GPU": [["a", "Conv"], ["head", "Gemm"]], "CPU": [["s", "Shape"]]})["GPU"] == 1


def test_share_counts_nodes_where_nothing_multiplies_and_none_that_are_for_shapes_alone() -> None:
    plain = ModelMacs(False, "f32", {}, frozenset({"s", "g"}))
    assert plain.shares("GPU", {"GPU": [["r", "Relu"]], "CPU": [["q", "Relu"]]})["GPU"] == 0.5
    assert plain.shares("GPU", {"GPU": [["r", "Relu"]], "CPU": [["s", "Shape"], ["g", "Gather"]]})["GPU"] == 1


@pytest.mark.parametrize("whole", [False, True])
def test_open_axes_are_those_of_the_samples(tmp_path: Path, whole: bool) -> None:
    proto = faulty_models.cnn()
    for axis in proto.graph.input[0].type.tensor_type.shape.dim[2:]:
        axis.dim_param = "any"
    proto.graph.node[0].name = ""
    onnx.save(proto, tmp_path / "open.onnx")
    np.savez(tmp_path / "in.npz", x=np.zeros((5, 2, 3, 20, 10) if whole else (5, 3, 20, 10), np.float32))
    read = read_model_macs(tmp_path / "open.onnx", tmp_path / "in.npz")
    samples = 2 if whole else 1
    assert read.macs == {
        "Conv of a": ("Conv", samples * 8 * 200 * 27),
        "conv2": ("Conv", samples * 6 * 9 * 4 * 72),
        "head": ("Gemm", samples * 60),
    }
    assert (read.quantized, read.precision) == (False, "f32")


def test_nodes_that_only_compute_shapes_are_told_apart(tmp_path: Path) -> None:
    proto = onnx_text.model("""
        flatten (float[n,2,3] x) => (float[?,?] y)
        <int64[1] zero = {0}, int64[1] rest = {-1}>
        {
            [shape] s = Shape(x)
            [first] g = Gather(s, zero)
            [target] t = Concat<axis = 0>(g, rest)
            [reshape] y = Reshape(x, t)
        }
    """)
    onnx.save(proto, tmp_path / "m.onnx")
    np.savez(tmp_path / "in.npz", x=np.zeros((1, 2, 3), np.float32))
    assert read_model_macs(tmp_path / "m.onnx", tmp_path / "in.npz").shape_nodes == {"shape", "first", "target"}


def test_target_is_asked_for_single_samples_alone_where_it_fails_at_all_of_them(tmp_path: Path) -> None:
    """The race tells at which batch sizes; it would not start for any of them otherwise."""
    onnx.save(faulty_models.picky(1, 4), tmp_path / "picky.onnx")
    np.savez(tmp_path / "in.npz", x=np.random.default_rng(0).standard_normal((3, 4), dtype=np.float32))
    expected = ExpectedOutputs.of(tmp_path / "picky.onnx", tmp_path / "in.npz", 60)
    assert expected.batches == (1, 3)
    truth = look(tmp_path / "picky.onnx", OrtCpu(), tmp_path / "in.npz", expected)
    assert truth.reason is None
    assert truth.sqnr_db == math.inf
    onnx.save(faulty_models.picky(0, 4), tmp_path / "none.onnx")
    assert "out of data bounds" in str(look(tmp_path / "none.onnx", OrtCpu(), tmp_path / "in.npz", expected).error)


PLAN = Plan(batch_sizes=(1,), rounds=6, block_ms=1, threads=1, timeout_s=60)


@pytest.fixture(scope="module")
def examiner(tmp_path_factory: pytest.TempPathFactory, model: Path, inputs: Path) -> TargetExaminer:
    broken, framework_model = (tmp_path_factory.mktemp("files") / name for name in ("broken.onnx", "model.own"))
    broken.write_bytes(b"broken")
    models = {"fp32": model, "twin": model, "broken": broken}
    return TargetExaminer.from_models(models, inputs, PLAN, framework_model)


def test_model_that_is_validated_can_be_measured(examiner: TargetExaminer) -> None:
    found = examiner.examine("fp32", OrtCpu())
    assert (found.status, found.reason) == ("measured", "")
    assert found.validation.sqnr_db > 110


@pytest.mark.parametrize(
    ("name", "target", "status", "reason"),
    [
        ("broken", OrtCpu(), "failed", "not a readable ONNX model"),
        ("fp32", States(label="int8"), "not applicable", "runs only quantized models"),
        ("twin", OfFramework(), "not applicable", "runs only the framework's own model"),
    ],
)
def test_model_is_not_measured_with_a_reason(
    examiner: TargetExaminer, monkeypatch: pytest.MonkeyPatch, name: str, target: BaseTarget, status: str, reason: str
) -> None:
    monkeypatch.setattr(type(target), "unavailable", lambda _: None)
    found = examiner.examine(name, target)
    assert (found.status, found.validation) == (status, None)
    assert reason in found.reason


def test_target_of_a_framework_runs_its_own_file_and_others_the_model(examiner: TargetExaminer) -> None:
    assert examiner.file("fp32", OfFramework()).name == "model.own"
    assert examiner.file("fp32", OrtCpu()) == examiner.models["fp32"]


def test_target_that_is_unavailable_says_why(examiner: TargetExaminer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OrtCpu, "unavailable", lambda _: "no such processor")
    found = examiner.examine("fp32", OrtCpu())
    assert (found.status, found.reason) == ("unavailable", "no such processor")


@pytest.fixture(scope="module")
def amplifying(model: Path, inputs: Path) -> Path:
    """A network that amplifies rounding errors by 40 dB: its output is the difference of two nearly equal products."""
    one, other = np.random.default_rng(1).standard_normal((2, 768, 10), dtype=np.float32)
    text = """
        amplifying (float[batch,3,16,16] x) => (float[batch,10] y)
        <float[768,10] w1, float[768,10] w2>
        { [flat] f = Flatten(x) [one] a = MatMul(f, w1) [other] b = MatMul(f, w2) [minus] y = Sub(a, b) }
    """
    onnx.save(onnx_text.model(text, {"w1": one, "w2": one + other / 100}), path := model.with_name("amplifying.onnx"))
    for bits in (7, 10):
        rounded(path, bits)
    return path


@pytest.mark.parametrize(
    ("bits", "effective", "passes"), [(10, "tf32 or f16", {"tf32", "f16", "bf16"}), (7, "bf16", {"bf16"})]
)
def test_network_that_amplifies_rounding_errors_is_held_to_limits_of_its_own(
    amplifying: Path, inputs: Path, bits: int, effective: str, passes: set[Precision]
) -> None:
    """As a ResNet-50 does on a GPU, whose outputs in TF32 are at 33 dB, and in bfloat16 at 18 dB."""
    expected = ExpectedOutputs.of(amplifying, inputs, 60)
    targets = {label: OtherFile(label=label, prefix=f"rounded-{bits}-") for label in FLOOR_DB}
    seen = {label: look(amplifying, target, inputs, expected) for label, target in targets.items()}
    assert seen["f16"].sqnr_db < FLOOR_DB["bf16"]
    assert {truth.effective for truth in seen.values()} == {effective}
    assert {label for label in seen if label != "int8" and not failed(seen[label])} == passes


def test_bfloat16_weights_keep_their_type_and_seven_bits(amplifying: Path) -> None:
    path, again = (amplifying.with_name(name) for name in ("bf16.onnx", "again.onnx"))
    assert write_bf16_weights(amplifying, path)
    assert not write_bf16_weights(path, again)
    [stored, *_] = onnx.load(path).graph.initializer
    assert stored.data_type == onnx.TensorProto.FLOAT
    assert not (numpy_helper.to_array(stored).view(np.uint32) & 0xFFFF).any()
