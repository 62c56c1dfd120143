"""In which precision a target computed is found out by its answers and by its kernels, never by its name."""

import dataclasses
import math
import sys
from pathlib import Path

import faulty
import numpy as np
import onnx
import pytest
from examined import States, failed, look
from onnx import helper, numpy_helper

from tasks.benchmark.precision import distance_db, named
from tasks.benchmark.truth import Expected, effective
from tasks.targets import OrtCpu


class Names(States):
    """Its kernels say what they are, as OpenVINO's do."""

    kernels: dict[str, int]

    def command(self) -> tuple[str, ...]:
        code = "import sys; from tasks.runtime import worker as w; from tasks.runtime.engines import ort as o; "
        code += "was = o.Loaded.placement; "
        code += (
            f"o.Loaded.placement = lambda *a: was(*a) | {{'kernels': {self.kernels}}}; w.serve(sys.stdin, sys.stdout)"
        )
        return (sys.executable, "-c", code)


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


@pytest.fixture(scope="module")
def sure(model: Path, inputs: Path) -> Path:
    """The network as Keras exports one, sure of every picture: the least of the largest probabilities is 0.9999."""
    proto = onnx.load(model)
    parts = ("Mul", ["y", "k"], ["z"]), ("Add", ["z", "bias"], ["s"]), ("Softmax", ["s"], ["q"])
    proto.graph.node.extend(helper.make_node(*part, name=part[0]) for part in parts)
    bias = faulty.tensor("bias", [24] + [0] * (faulty.CLASSES - 1), np.float32)
    proto.graph.initializer.extend([faulty.tensor("k", 4, np.float32), bias])
    proto.graph.output[0].CopyFrom(faulty.value("q", "batch", faulty.CLASSES))
    onnx.save(proto, path := model.with_name("sure.onnx"))
    return path


@pytest.fixture(scope="module")
def sure_exact(sure: Path, inputs: Path) -> Expected:
    expected = Expected.of(sure, inputs, 60)
    assert expected.answers[0].max(1).min() > 0.9999
    return expected


def test_softmax_that_is_sure_hides_no_coarser_arithmetic(sure: Path, inputs: Path, sure_exact: Expected) -> None:
    coarse = rounded(sure, 7)
    silent = look(coarse, OrtCpu(), inputs, sure_exact)
    assert failed(silent) == ["target.sqnr"]
    assert (
        distance_db(Expected.of(coarse, inputs, 60).answers, sure_exact.answers) > 90
    )  # of the probabilities themselves
    assert failed(look(coarse, States(label="bf16"), inputs, sure_exact)) == []
    assert failed(look(rounded(sure, 10), States(label="f16"), inputs, sure_exact)) == []
    assert failed(look(sure, OrtCpu(), inputs, sure_exact)) == []
    assert failed(look(sure, States(label="bf16"), inputs, sure_exact)) == ["target.sqnr_above"]


def test_candidate_is_rejected_when_its_kernels_are_coarser_than_stated(
    model: Path, inputs: Path, exact: Expected
) -> None:
    """Whatever the answers show; and kernels that are what is stated need not show it in the answers."""
    assert failed(look(model, Names(kernels={"f32": 3, "bf16": 1}), inputs, exact)) == ["target.coarse_kernels"]
    assert failed(look(model, Names(kernels={"i8": 3}), inputs, exact)) == ["target.coarse_kernels"]
    assert failed(look(model, Names(kernels={"bf16": 3}, label="bf16"), inputs, exact)) == []
    assert failed(look(model, Names(kernels={"bf16": 3}, label="f16"), inputs, exact)) == [
        "target.coarse_kernels",
        "target.sqnr_above",
    ]


def test_precision_of_integers_is_what_the_kernels_say(exact: Expected) -> None:
    classes = dataclasses.replace(exact, answers=[np.arange(3)])
    assert effective(math.inf, {}, classes) == "unknown"
    assert effective(math.inf, {"f32": 3, "bf16": 1}, classes) == "bf16"


def test_candidate_is_rejected_when_only_its_large_batches_are_wrong(
    model: Path, inputs: Path, exact: Expected
) -> None:
    proto = onnx.load(model)
    nodes = [
        helper.make_node("Shape", ["x"], ["n"], "n", end=1),
        helper.make_node("Cast", ["n"], ["many"], "many", to=onnx.TensorProto.FLOAT),
        helper.make_node("Div", ["logits", "many"], ["y"], "share"),
    ]
    proto.graph.node[-1].output[0] = "logits"
    proto.graph.node.extend(nodes)
    onnx.save(proto, path := model.with_name("batches.onnx"))
    truth = look(path, OrtCpu(), inputs, exact)
    assert failed(truth) == ["target.sqnr"]
    assert truth.sqnr_db < 10


def test_file_in_half_floats_is_ranked_as_such(model: Path, inputs: Path) -> None:
    """Its exact answers are nearly float32's, and a GPU's half-float kernels are not."""
    from tasks.quantize.float16 import Float16

    half = model.with_name("half.onnx")
    Float16().write(model, None, None, half)
    expected = Expected.of(half, inputs, 60)
    truth = look(half, OrtCpu(), inputs, expected)
    assert (truth.stated, failed(truth)) == ("f16", [])
    assert failed(look(rounded(half, 10), OrtCpu(), inputs, expected)) == []
    assert look(half, States(label="bf16"), inputs, expected).stated == "bf16"


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
    assert truth.kernels == {"i8": 3}
    assert failed(look(quantized, States(label="int8"), inputs, expected)) == []
    floats = look(quantized, States(label="int8", level="off"), inputs, expected)
    assert failed(floats) == ["target.integer_kernels"]
    assert (floats.effective, floats.kernels) == ("f32", {"f32": 3})
    assert 15 < truth.quality_db < 60
    worse = look(rounded(quantized, 1), OrtCpu(), inputs, expected)  # its scales are off, so its answers are
    assert failed(worse) == ["target.sqnr"]


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
