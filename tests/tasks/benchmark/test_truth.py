"""What a target did is found out by what it did: where it ran, how exact it was, whether it repeats itself."""

import math
import sys
from pathlib import Path
from typing import ClassVar

import faulty
import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tasks.benchmark.truth import Expected, Truth, distance_db, examine, macs_share, named, steady
from tasks.errors import StageError
from tasks.targets import OrtCpu, OrtCuda, OrtTensorRt
from tasks.targets.base import BaseTarget, Precision

MACS = {"a": ("Conv", 900), "b": ("Conv", 50), "c": ("Gemm", 50)}


class States(OrtCpu):
    """The CPU provider, with any label."""

    label: Precision = "f32"

    @property
    def stated(self) -> Precision:
        return self.label


class Broken(BaseTarget):
    """A worker that behaves as it is told."""

    kind: str = "broken"
    code: str
    engine: ClassVar[str] = "tasks.runtime.engines.ort"

    def command(self) -> tuple[str, ...]:
        return (sys.executable, "-c", f"import sys, os, time; sys.stdin.readline(); {self.code}")


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("inputs") / "in.npz"
    np.savez(path, x=np.random.default_rng(0).standard_normal((3, 3, 16, 16), dtype=np.float32))
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "cnn.onnx"
    onnx.save(faulty.cnn(), path)
    return path


@pytest.fixture(scope="module")
def exact(model: Path, inputs: Path) -> Expected:
    return Expected.of(model, inputs, 60)


def rounded(model: Path, bits: int) -> Path:
    """The same network with so many bits of mantissa in its weights: what a coarser precision does to the answers."""
    proto = onnx.load(model)
    for tensor in (t for t in proto.graph.initializer if t.data_type == onnx.TensorProto.FLOAT):
        whole = numpy_helper.to_array(tensor).copy().view(np.uint32)
        drop = 23 - bits
        coarse = ((whole + (1 << (drop - 1))) >> drop << drop).view(np.float32)
        tensor.CopyFrom(numpy_helper.from_array(coarse, tensor.name))
    path = model.with_name(f"rounded-{bits}-{model.name}")
    onnx.save(proto, path)
    return path


def look(model: Path, target: BaseTarget, inputs: Path, expected: Expected, timeout_s: float = 60) -> Truth:
    return examine(model, target, expected, inputs, threads=1, timeout_s=timeout_s)


def failed(truth: Truth) -> list[str]:
    return [check.name for check in truth.checks if check.blocks]


def test_target_passes_when_it_does_what_it_says(model: Path, inputs: Path, exact: Expected) -> None:
    truth = look(model, OrtCpu(), inputs, exact)
    assert truth.reason is None
    assert truth.macs_share == 1
    assert truth.nodes == {"CPUExecutionProvider": 7}
    assert (truth.stated, truth.effective) == ("f32", "f32")
    assert truth.sqnr_db > 110


def test_session_that_asked_for_cuda_and_got_the_cpu_fails_its_check(
    model: Path, inputs: Path, exact: Expected
) -> None:
    target = OrtCuda()
    if target.unavailable() is None:
        pytest.skip("CUDA runs here")
    truth = look(model, target, inputs, exact)
    assert truth.macs_share == 0
    assert failed(truth) == ["target.macs_share"]
    assert "CUDAExecutionProvider was asked for; 7 nodes on CPUExecutionProvider" in str(truth.reason)


def test_target_is_not_examined_further_when_its_session_is_refused(model: Path, inputs: Path, exact: Expected) -> None:
    target = OrtTensorRt()
    if target.unavailable() is None:
        pytest.skip("TensorRT runs here")
    truth = look(model, target, inputs, exact)
    assert truth.reason is not None
    assert "TensorRT" in truth.reason
    assert "\n" not in truth.reason


def test_candidate_is_rejected_when_it_computes_coarser_than_it_states(
    model: Path, inputs: Path, exact: Expected
) -> None:
    """Seven bits of mantissa are bfloat16's; the reference is the model before its weights were rounded."""
    truth = look(rounded(model, 7), OrtCpu(), inputs, exact)
    assert failed(truth) == ["target.sqnr"]
    assert truth.effective != "f32"
    assert "f32 is stated" in str(truth.reason)
    assert failed(look(rounded(model, 7), States(label="bf16"), inputs, exact)) == []


def test_candidate_is_rejected_when_it_states_a_precision_that_it_does_not_have(
    model: Path, inputs: Path, exact: Expected
) -> None:
    truth = look(model, States(label="bf16"), inputs, exact)
    assert failed(truth) == ["target.sqnr_above"]
    assert "bf16 is stated, the answers show f32" in str(truth.reason)


def test_candidate_is_rejected_when_int8_is_stated_and_nothing_is_quantised(
    model: Path, inputs: Path, exact: Expected
) -> None:
    assert failed(look(model, States(label="int8"), inputs, exact)) == ["target.integer_kernels"]


@pytest.fixture
def quantized(model: Path) -> Path:
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        left = 3

        def get_next(self) -> dict[str, np.ndarray] | None:
            self.left -= 1
            source = np.random.default_rng(max(0, self.left))
            return {"x": source.standard_normal((4, 3, 16, 16), dtype=np.float32)} if self.left >= 0 else None

    path = model.with_name("int8.onnx")
    quantize_static(model, path, Reader(), activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8)
    return path


def test_quantised_model_is_held_to_its_own_exact_arithmetic(
    model: Path, quantized: Path, inputs: Path, exact: Expected
) -> None:
    expected = Expected.of(quantized, inputs, 60, exact)
    truth = look(quantized, OrtCpu(), inputs, expected)
    assert truth.reason is None
    assert truth.effective == "int8"
    assert 15 < truth.quality_db < 60
    worse = look(rounded(quantized, 1), OrtCpu(), inputs, expected)  # its scales are off, so its answers are
    assert failed(worse) == ["target.sqnr"]


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("os.kill(os.getpid(), 11)", "was killed by signal 11"),
        ("time.sleep(60)", "no answer to 'load' within 1 s"),
        ("print('rubbish', flush=True); time.sleep(60)", "rubbish"),
        ("sys.exit('out of memory')", "out of memory"),
    ],
)
def test_worker_that_breaks_is_a_verdict(model: Path, inputs: Path, exact: Expected, code: str, told: str) -> None:
    truth = look(model, Broken(code=code), inputs, exact, timeout_s=1)
    assert truth.error is not None
    assert told in truth.error
    assert truth.reason == truth.error


def test_answers_are_not_expected_of_a_file_that_is_no_model(tmp_path: Path, inputs: Path) -> None:
    (tmp_path / "no.onnx").write_bytes(b"nothing of the kind")
    with pytest.raises(StageError, match=r"no\.onnx: not a"):
        Expected.of(tmp_path / "no.onnx", inputs, 60)


@pytest.mark.parametrize(
    ("nodes", "share"),
    [
        ({"GPU": [["a", "Conv"], ["b", "Conv"], ["c", "Gemm"]]}, 1),
        ({"CPU": [["a", "Conv"], ["b", "Conv"], ["c", "Gemm"]]}, 0),
        ({"GPU": [["subgraph", ""]], "CPU": [["c", "Gemm"]]}, 0.95),
        ({"GPU": [["subgraph", ""]], "CPU": [["a", "FusedConv"]]}, 0.1),
        ({"GPU": [["subgraph", ""]], "CPU": [["renamed", "FusedConv"]]}, 1 - 0.475),
        ({"GPU": [["subgraph", ""]], "CPU": [["s", "Shape"], ["t", "Gather"]]}, 1),
        ({}, 0),
    ],
)
def test_share_counts_multiplications_and_not_nodes(nodes, share: float) -> None:
    assert macs_share({"asked": "GPU", "nodes": nodes}, MACS) == pytest.approx(share)


def test_share_counts_nodes_where_nothing_multiplies() -> None:
    assert macs_share({"asked": "GPU", "nodes": {"GPU": [["r", "Relu"]], "CPU": [["s", "Relu"]]}}, {}) == 0.5


@pytest.mark.parametrize(
    ("value_db", "kernels", "name"),
    [
        (127, {}, "f32"),
        (127, {"f32": 20}, "f32"),
        (66, {}, "tf32 or f16"),
        (63, {"bf16": 3}, "bf16"),
        (63, {"f32": 3}, "tf32 or f16"),  # the answers are believed, not the word
        (52, {}, "bf16"),
        (20, {}, "less than bf16"),
        (math.nan, {}, "less than bf16"),
    ],
)
def test_precision_is_named_by_the_answers(value_db: float, kernels, name: str) -> None:
    assert named(value_db, kernels) == name


def test_distance_is_unknown_when_outputs_do_not_match() -> None:
    one, two = np.ones((2, 3), np.float32), np.ones((2, 4), np.float32)
    assert math.isnan(distance_db([one], [two]))
    assert math.isnan(distance_db([one], [one, one]))
    assert distance_db([np.array([1])], [np.array([2])]) == -math.inf
    assert distance_db([one, np.array([1])], [one, np.array([2])]) == math.inf  # a class says nothing of precision


def test_target_that_does_not_repeat_itself_fails() -> None:
    assert steady(math.inf).passed
    assert not steady(30).passed
    assert not steady(math.nan).passed
