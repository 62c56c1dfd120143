"""In which precision a target computed is found out by its answers and by its kernels, never by its name."""

import dataclasses
import math
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx_text
import pytest
from calibration_feeds import Feeds
from processors import AS_HASWELL, CASCADE_LAKE, HASWELL, needs_haswell, with_largest_weights
from validated_target import States, failed, look, rounded

from gauntlet.race.expected_outputs import ExpectedOutputs
from gauntlet.race.precision import precision_name, worst_sqnr_db, write_seven_bit
from gauntlet.race.target_validation import effective_precision
from gauntlet.runtime.processor import Processor
from gauntlet.targets import OrtCpu

pytestmark = pytest.mark.slow


class Names(States):
    """Its kernels say what they are, as OpenVINO's do."""

    kernels: dict[str, int]

    def command(self) -> tuple[str, ...]:
        code = "import sys; from gauntlet.runtime import worker as w; from gauntlet.runtime.engines import ort as o; "
        code += "was = o.OrtEngine.placement; "
        code += f"o.OrtEngine.placement = lambda *a: was(*a) | {{'kernels': {self.kernels}}}; "
        code += "w.serve(sys.stdin, sys.stdout)"
        return (sys.executable, "-c", code)


def test_candidate_is_rejected_when_it_computes_coarser_than_it_states(
    model: Path, inputs: Path, exact: ExpectedOutputs
) -> None:
    """Seven bits of mantissa are bfloat16's; the reference is the model before its weights were rounded."""
    truth = look(rounded(model, 7), OrtCpu(), inputs, exact)
    assert failed(truth) == ["target.sqnr"]
    assert truth.effective != "f32"
    assert "f32 is stated" in str(truth.reason)
    assert failed(look(rounded(model, 7), States(label="bf16"), inputs, exact)) == []


def test_candidate_is_rejected_when_it_states_a_precision_that_it_does_not_have(
    model: Path, inputs: Path, exact: ExpectedOutputs
) -> None:
    truth = look(model, States(label="bf16"), inputs, exact)
    assert failed(truth) == ["target.sqnr_above"]
    assert "bf16 is stated, the outputs show f32" in str(truth.reason)


def test_candidate_is_rejected_when_int8_is_stated_and_nothing_is_quantized(
    model: Path, inputs: Path, exact: ExpectedOutputs
) -> None:
    assert failed(look(model, States(label="int8"), inputs, exact)) == ["target.integer_kernels"]


@pytest.fixture(scope="module")
def sure(model: Path, inputs: Path) -> Path:
    """The network as Keras exports one, sure of every picture: the least of the largest probabilities is 0.9999."""
    proto = onnx.load(model)
    text = """
        sure () => (float[batch,10] q)
        <float k = {4}, float[10] bias = {24, 0, 0, 0, 0, 0, 0, 0, 0, 0}>
        {
            [mul] z = Mul(y, k)
            [add] s = Add(z, bias)
            [softmax] q = Softmax(s)
        }
    """
    onnx_text.extend(proto, text)
    onnx.save(proto, path := model.with_name("sure.onnx"))
    return path


@pytest.fixture(scope="module")
def sure_exact(sure: Path, inputs: Path) -> ExpectedOutputs:
    expected = ExpectedOutputs.of(sure, inputs, 60)
    assert expected.outputs[0].max(1).min() > 0.9999
    return expected


def test_softmax_that_is_sure_hides_no_coarser_arithmetic(
    sure: Path, inputs: Path, sure_exact: ExpectedOutputs
) -> None:
    coarse = rounded(sure, 7)
    assert failed(look(coarse, OrtCpu(), inputs, sure_exact)) == ["target.sqnr"]
    assert (
        worst_sqnr_db(ExpectedOutputs.of(coarse, inputs, 60).outputs, sure_exact.outputs) > 90
    )  # of the probabilities themselves
    assert failed(look(coarse, States(label="bf16"), inputs, sure_exact)) == []
    assert failed(look(rounded(sure, 10), States(label="f16"), inputs, sure_exact)) == []
    assert failed(look(sure, OrtCpu(), inputs, sure_exact)) == []
    assert failed(look(sure, States(label="bf16"), inputs, sure_exact)) == ["target.sqnr_above"]


def test_candidate_is_rejected_when_its_kernels_are_coarser_than_stated(
    model: Path, inputs: Path, exact: ExpectedOutputs
) -> None:
    """Whatever the answers show; and kernels that are what is stated need not show it in the answers."""
    assert failed(look(model, Names(kernels={"f32": 3, "bf16": 1}), inputs, exact)) == ["target.coarse_kernels"]
    assert failed(look(model, Names(kernels={"i8": 3}), inputs, exact)) == ["target.coarse_kernels"]
    assert failed(look(model, Names(kernels={"bf16": 3}, label="bf16"), inputs, exact)) == []
    assert failed(look(model, Names(kernels={"bf16": 3}, label="f16"), inputs, exact)) == [
        "target.coarse_kernels",
        "target.sqnr_above",
    ]


def test_precision_of_integers_is_what_the_kernels_say(exact: ExpectedOutputs) -> None:
    classes = dataclasses.replace(exact, outputs=[np.arange(3)])
    assert effective_precision(math.inf, {}, classes) == "unknown"
    assert effective_precision(math.inf, {"f32": 3, "bf16": 1}, classes) == "bf16"


def test_candidate_is_rejected_when_only_its_large_batches_are_wrong(
    model: Path, inputs: Path, exact: ExpectedOutputs
) -> None:
    proto = onnx.load(model)
    proto.graph.node[-1].output[0] = "logits"
    onnx_text.extend(proto, "{ [n] n = Shape<end = 1>(x) [many] many = Cast<to = 1>(n) [share] y = Div(logits, many) }")
    onnx.save(proto, path := model.with_name("batches.onnx"))
    truth = look(path, OrtCpu(), inputs, exact)
    assert failed(truth) == ["target.sqnr"]
    assert truth.sqnr_db < 10


def test_candidate_is_rejected_when_only_one_batch_size_of_the_race_is_wrong(
    model: Path, inputs: Path, exact: ExpectedOutputs
) -> None:
    proto = onnx.load(model)
    proto.graph.node[-1].output[0] = "logits"
    text = (
        "[n] n = Shape<end = 1>(x) [two] t = Constant<value_ints = [2]>() [at] at = Equal(n, t) [not] m = Neg(logits)"
    )
    onnx_text.extend(proto, f"{{ {text} [either] y = Where(at, m, logits) }}")
    onnx.save(proto, path := model.with_name("two.onnx"))
    assert failed(look(path, OrtCpu(), inputs, exact, batch_sizes=(1, 3))) == []
    assert failed(look(path, OrtCpu(), inputs, exact, batch_sizes=(1, 2))) == ["target.sqnr"]


def test_file_in_half_floats_is_ranked_as_such(model: Path, inputs: Path) -> None:
    """Its exact answers are nearly float32's, and a GPU's half-float kernels are not."""
    from tasks.quantize.float16 import Float16

    half = model.with_name("half.onnx")
    Float16().quantize(model, None, None, half)
    expected = ExpectedOutputs.of(half, inputs, 60)
    truth = look(half, OrtCpu(), inputs, expected)
    assert (truth.stated, failed(truth)) == ("f16", [])
    assert failed(look(rounded(half, 10), OrtCpu(), inputs, expected)) == []
    assert look(half, States(label="bf16"), inputs, expected).stated == "bf16"


@pytest.fixture
def quantized(model: Path) -> Path:
    from onnxruntime.quantization import QuantType, quantize_static

    draws = [np.random.default_rng(seed).standard_normal((4, 3, 16, 16), dtype=np.float32) for seed in (2, 1, 0)]
    path = model.with_name("int8.onnx")
    quantize_static(
        model, path, Feeds({"x": x} for x in draws), activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8
    )
    return path


def test_quantized_model_is_held_to_its_own_exact_arithmetic(
    model: Path, quantized: Path, inputs: Path, exact: ExpectedOutputs
) -> None:
    expected = ExpectedOutputs.of(quantized, inputs, 60, exact)
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
    assert precision_name(value_db, kernels) == name


def test_distance_is_unknown_when_outputs_do_not_match() -> None:
    one, two = np.ones((2, 3), np.float32), np.ones((2, 4), np.float32)
    assert math.isnan(worst_sqnr_db([one], [two]))
    assert math.isnan(worst_sqnr_db([one], [one, one]))
    assert worst_sqnr_db([np.array([1])], [np.array([2])]) == -math.inf
    assert worst_sqnr_db([one, np.array([1])], [one, np.array([2])]) == math.inf  # a class says nothing of precision


class OnHaswell(OrtCpu):
    """The CPU provider of an emulated processor without VNNI."""

    def command(self) -> tuple[str, ...]:
        return (*AS_HASWELL, *super().command())


class Louder(OrtCpu):
    """Its outputs are a fifth too large, on any processor."""

    def command(self) -> tuple[str, ...]:
        code = "import sys; from gauntlet.runtime import worker as w; from gauntlet.runtime.engines import ort as o; "
        code += "was = o.OrtEngine.run; o.OrtEngine.run = lambda *a: [1.2 * y for y in was(*a)]; "
        code += "w.serve(sys.stdin, sys.stdout)"
        return (sys.executable, "-c", code)


@pytest.fixture
def saturating(quantized: Path) -> Path:
    return with_largest_weights(quantized)


@pytest.mark.nightly
def test_sound_integers_pass_when_their_sums_saturate(saturating: Path, inputs: Path, exact: ExpectedOutputs) -> None:
    needs_haswell()
    expected = ExpectedOutputs.of(saturating, inputs, 60)
    told = look(saturating, OnHaswell(), inputs, expected, 200, CASCADE_LAKE)
    assert failed(told) == ["target.sqnr"]
    truth = look(saturating, OnHaswell(), inputs, expected, 200, HASWELL)
    assert failed(truth) == []
    assert truth.quality_db == told.quality_db < expected.least_db


@pytest.mark.parametrize(("noise", "least"), [(1e-9, 90), (1e-2, 37), (0, 20)])
def test_quantized_model_need_not_be_more_exact_than_float32(
    noise: float, least: float, exact: ExpectedOutputs
) -> None:
    reference = [np.ones((4, 3))]
    expected = dataclasses.replace(exact, outputs=[reference[0] * (1 + noise)], reference=reference)
    assert expected.least_db == pytest.approx(least, abs=4)


@pytest.mark.parametrize("processor", [CASCADE_LAKE, HASWELL])
def test_candidate_is_rejected_when_its_integers_are_wrong_and_sums_may_saturate(
    quantized: Path, inputs: Path, exact: ExpectedOutputs, processor: Processor
) -> None:
    expected = ExpectedOutputs.of(quantized, inputs, 60, exact)
    truth = look(quantized, Louder(), inputs, expected, processor=processor)
    assert failed(truth) == ["target.sqnr"]
    assert ("7-bit weights" in str(truth.reason)) == processor.saturates


def test_weights_have_seven_bits_and_answers_stay_when_a_quantized_file_is_written_so(
    quantized: Path, inputs: Path
) -> None:
    path, again = quantized.with_name("seven.onnx"), quantized.with_name("again.onnx")
    assert write_seven_bit(quantized, path)
    assert not write_seven_bit(path, again)
    assert not write_seven_bit(quantized.with_name("cnn.onnx"), again)
    eight, seven = (ExpectedOutputs.of(file, inputs, 60).outputs for file in (quantized, path))
    assert 20 < worst_sqnr_db(seven, eight) < 60
