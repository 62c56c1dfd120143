"""A network that amplifies rounding errors is held to limits of its own, on a target of any precision."""

import sys
from pathlib import Path

import numpy as np
import onnx
import onnx_text
import pytest
from onnx import numpy_helper
from validated_target import States, failed, look, rounded

from gauntlet.race.expected_outputs import ExpectedOutputs
from gauntlet.race.precision import FLOOR_DB, write_bf16_weights
from gauntlet.targets.base import Precision


class Rounds(States):
    """A runtime that computes with so many bits of mantissa: it loads a file with such weights instead."""

    bits: int

    def command(self) -> tuple[str, ...]:
        code = "import sys; from pathlib import Path; from gauntlet.runtime import worker as w; "
        code += "from gauntlet.runtime.engines import ort as o; was = o._session; "
        name = f"'rounded-{self.bits}-' + file.name"
        code += f"o._session = lambda file, *a, **k: was(Path(file).with_name({name}), *a, **k); "
        code += "w.serve(sys.stdin, sys.stdout)"
        return (sys.executable, "-c", code)


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
    seen = {label: look(amplifying, Rounds(label=label, bits=bits), inputs, expected) for label in FLOOR_DB}
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
