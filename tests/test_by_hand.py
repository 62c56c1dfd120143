"""The comparison with an expert's files: what is made by hand is sound, and a file that is worse is called so."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from by_hand import quantized_by_hand, with_initializers
from expert import AS_IT_CAME, TOLERANCE_DB, Duel, Side, Speed, write_samples
from onnx_models import with_weights_as_constants, with_weights_as_inputs
from written_models import convolutions

from gauntlet.metrics.error_metrics import centered_sqnr_db

SAME = Speed(value=1, low=0.99, high=1.01)


def outputs(model: Path, images: np.ndarray) -> np.ndarray:
    found: np.ndarray = ort.InferenceSession(model).run(None, {"image": images})[0]
    return found


def operators(path: Path) -> list[str]:
    return [node.op_type for node in onnx.load(path).graph.node]


@pytest.mark.parametrize("stored", [with_weights_as_constants, with_weights_as_inputs])
def test_weights_become_initializers_wherever_they_were(stored, tmp_path: Path) -> None:
    images = np.random.default_rng(0).standard_normal((4, 3, 32, 32)).astype(np.float32)
    onnx.save(stored(convolutions(9)), tmp_path / "before.onnx")
    proto = with_initializers(onnx.load(tmp_path / "before.onnx"))
    onnx.save(proto, tmp_path / "after.onnx")
    assert [value.name for value in proto.graph.input] == ["image"]
    assert "Constant" not in operators(tmp_path / "after.onnx")
    expected, actual = (outputs(tmp_path / name, images) for name in ("before.onnx", "after.onnx"))
    np.testing.assert_allclose(actual, expected, atol=1e-5)


def test_old_model_becomes_int8_per_channel_in_two_forms(tmp_path: Path) -> None:
    images = np.random.default_rng(0).standard_normal((16, 3, 32, 32)).astype(np.float32)
    model = tmp_path / "model.onnx"
    onnx.save(with_weights_as_constants(convolutions(9)), model)
    files = quantized_by_hand(model, {"image": images}, tmp_path)
    assert list(files) == ["8 bit", "7 bit"]
    widest = {}
    for name, file in files.items():
        proto = onnx.load(file)
        assert proto.opset_import[0].version >= 17
        assert "QuantizeLinear" in operators(file)
        stored = {t.name: onnx.numpy_helper.to_array(t) for t in proto.graph.initializer}
        assert max(array.size for n, array in stored.items() if n.endswith("_scale")) > 1  # per channel
        widest[name] = max(int(np.abs(a.astype(int)).max()) for a in stored.values() if a.dtype == np.int8)
    assert widest == {"8 bit": 127, "7 bit": 64}
    noise = centered_sqnr_db(outputs(files["7 bit"], images), outputs(model, images))
    assert noise > 6  # it does not saturate on any processor


def test_samples_fit_the_model_in_shape_and_layout(tmp_path: Path) -> None:
    onnx.save(convolutions(13), tmp_path / "model.onnx")
    files = write_samples("model", tmp_path / "model.onnx", tmp_path)
    with np.load(files["calibration"]) as first, np.load(files["test"]) as second:
        assert (first["image"].shape, second["image"].shape) == ((64, 3, 32, 32), (128, 3, 32, 32))
        assert not np.array_equal(first["image"], second["image"][:64])
        assert 0.1 < first["image"].std() < 10


def duel(ratio: Speed = SAME, chosen_db: float = 30, by_hand_db: float = 30) -> Duel:
    sides = (Side(file=name, over_fp32=SAME, sqnr_db=db) for name, db in (("a", by_hand_db), ("b", chosen_db)))
    by_hand, chosen = sides
    return Duel(model="m", by_hand=by_hand, chosen=chosen, ratio=ratio, control=SAME, other_load_cores=0)


def test_file_is_as_fast_unless_it_is_proven_slower() -> None:
    assert duel().is_as_fast
    assert not duel(Speed(value=0.97, low=0.95, high=0.99)).is_as_fast


def test_file_is_as_exact_unless_its_noise_is_larger_than_the_tolerance() -> None:
    assert duel().is_as_exact
    assert duel(chosen_db=30 - TOLERANCE_DB).is_as_exact
    assert not duel(chosen_db=29.4).is_as_exact
    kept = duel(by_hand_db=float("inf"))
    assert not kept.is_as_exact
    assert kept.replace(by_hand=kept.by_hand.replace(file=AS_IT_CAME)).is_as_exact  # nothing was made by hand
