"""Outlying channels move into weights: INT8 products gain, the float model stays, and what gains nothing is left."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_text
import pytest
from calibrated_recipes import calibrated
from onnx import numpy_helper
from transformer_models import encoder, tokens

from gauntlet.core.signature import signature_from_graph
from gauntlet.core.workspace import Workspace
from gauntlet.metrics.output_noise import worst_noise_db
from gauntlet.runtime.session import open_session
from tasks.quantize import quantize
from tasks.quantize.static import StaticInt8
from wings.smoothing.smooth import smooth_inputs

OUTLYING, LARGER = [3, 17], 40
PARTS = """
    mean = ReduceMean<axes = [-1]>(x) centered = Sub(x, mean) squares = Mul(centered, centered)
    variance = ReduceMean<axes = [-1]>(squares) deviation = Sqrt(variance) n = Div(centered, deviation)
    scaled = Mul(n, gain) shifted = Add(shift, scaled)
"""
"""A layer norm as exporters wrote it before opset 17."""


def with_outliers(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Enlarge two channels of every normalization inside the blocks, and read them with smaller weights."""
    for tensor in proto.graph.initializer:
        values = numpy_helper.to_array(tensor).copy()
        if tensor.name.startswith(("gain1", "gain2", "shift1", "shift2")) or tensor.name in ("gain", "shift"):
            values[OUTLYING] *= LARGER
        elif tensor.name.startswith(("wq", "wk", "wv", "w1")):
            values[OUTLYING] *= 2 / LARGER
        tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    return proto


def parted(tail: str = "y = MatMul(shifted, w1)", outputs: str = "float[n,5,32] y") -> onnx.ModelProto:
    random = np.random.default_rng(0)
    weights = {"gain": np.ones(32), "shift": np.zeros(32), "w1": random.standard_normal((32, 32)) / 6}
    arrays = {name: array.astype(np.float32) for name, array in weights.items()}
    text = f"parted (float[n,5,32] x) => ({outputs}) {{ {PARTS} {tail} }}"
    return with_outliers(onnx_text.model(text, arrays, opset=13))


def outputs(model: Path, x: np.ndarray) -> list[np.ndarray]:
    session = open_session(model)
    return session.run(None, {session.get_inputs()[0].name: x})  # type: ignore[no-any-return]


@pytest.fixture
def noise_db(workspace: Callable[..., Workspace], tmp_path: Path) -> Callable[..., tuple[float, int]]:
    """Return a function that says how near the static INT8 form of an encoder is, and what was smoothed."""

    def run(proto: onnx.ModelProto, recipe: StaticInt8 | None = None) -> tuple[float, int]:
        out, path, name = workspace(), tmp_path / "model.onnx", proto.graph.input[0].name
        signature_from_graph(proto).write(proto)
        onnx.save(proto, path)
        np.savez(tmp_path / "calibration.npz", allow_pickle=False, **{name: tokens(48)})
        np.savez(tmp_path / "test.npz", allow_pickle=False, **{name: tokens(2, seed=3)})
        model, *splits = (out.store_file(tmp_path / f) for f in ("model.onnx", "calibration.npz", "test.npz"))
        ready = calibrated(out, model, *splits)
        made = quantize(recipe or StaticInt8(), out, model=model, **ready.artifacts).artifacts["model"]
        unseen = tokens(48, seed=2)
        return worst_noise_db(outputs(out.path(made), unseen), outputs(out.path(model), unseen)), ready.facts.smoothed

    return run


def test_encoder_with_outlying_channels_is_as_exact_as_one_without(noise_db, monkeypatch: pytest.MonkeyPatch) -> None:
    even, untouched = noise_db(encoder())
    outlying, smoothed = noise_db(with_outliers(encoder()))
    assert (untouched, smoothed) == (0, 4)  # two in each block; the last norm is averaged before its product
    assert outlying > even - 3
    monkeypatch.setattr("wings.smoothing.smooth.STRENGTHS", ())
    assert noise_db(with_outliers(encoder()))[0] < even - 8


SUM = "product = MatMul(shifted, w1) y = Add(product, shifted)"  # as in BERT


def test_product_gains_when_a_sum_reads_the_norm_as_well(noise_db, monkeypatch: pytest.MonkeyPatch) -> None:
    proto = parted(SUM, "float[n,5,32] y, float[n,5,32] product")
    recipe = StaticInt8(reduce_range=True, qdq_placement="inputs")
    outlying, smoothed = noise_db(proto, recipe)
    monkeypatch.setattr("wings.smoothing.smooth.STRENGTHS", ())
    assert (smoothed, noise_db(proto, recipe)[1]) == (1, 0)
    assert outlying > noise_db(proto, recipe)[0] + 8


@pytest.mark.parametrize(
    ("proto", "kept"),
    [
        (with_outliers(encoder()), set()),
        (parted(), set()),
        (parted("other = MatMul(x, w1) y0 = MatMul(shifted, w1) y = Add(y0, other)"), {"w1"}),  # of another product
        (parted(SUM), {"gain", "shift"}),
    ],
)
def test_float_model_and_its_nodes_stay(proto: onnx.ModelProto, kept: set[str], tmp_path: Path) -> None:
    path, x = tmp_path / "model.onnx", tokens(8)
    onnx.save(proto, path)
    before = outputs(path, x)
    assert smooth_inputs(path, {proto.graph.input[0].name: tokens()}) > 0
    assert worst_noise_db(outputs(path, x), before) > 90
    after = onnx.load(path)
    stays = [(n.name, n.op_type, *n.output) for n in after.graph.node if not n.output[0].endswith("_sum")]
    assert stays == [(n.name, n.op_type, *n.output) for n in proto.graph.node]
    assert len(after.graph.initializer) == len(proto.graph.initializer) + len(kept)
    assert kept <= {tensor.name for tensor in after.graph.initializer}


@pytest.mark.parametrize(
    ("tail", "also"),
    [
        ("half = Neg(shifted) product = MatMul(shifted, w1) y = Add(product, half)", ""),  # another node reads it, too
        ("y = MatMul(shifted, w1)", ", float[n,5,32] shifted"),  # so does the caller
        ("y = MatMul(shifted, w1)", ", float[n,5,32] scaled"),  # or reads what would be changed: outputs differ
        ("other = MatMul(shifted, w1) both = MatMul(other, w1) y = MatMul(both, shifted)", ""),  # and not on the left
        ("product = MatMul(shifted, w1) half = Cast<to = 10>(shifted) y = CastLike(product, half)", ""),
    ],
)
def test_normalization_that_others_read_is_left_alone(tail: str, also: str, tmp_path: Path) -> None:
    proto, path = parted(tail, f"float[n,5,32] y{also}"), tmp_path / "model.onnx"
    onnx.save(proto, path)
    content = path.read_bytes()
    assert smooth_inputs(path, {"x": tokens()}) == 0
    assert path.read_bytes() == content
