"""Embeddings come from the same call as the outputs, which keep every bit."""

from pathlib import Path

import numpy as np
import onnx
import onnx_text
import pytest
from calibration_feeds import Feeds

from gauntlet.core.arrays import NamedArrays
from gauntlet.request_log.log_format import EMBEDDING
from gauntlet.runtime.batched_inference import batched_inference
from gauntlet.runtime.session import open_session
from wings.lifecycle.library.monitoring.embedding_output import EmbeddingOutput, NoEmbedding, open_embedding_session
from wings.lifecycle.library.monitoring.embedding_search import find_embedding

NETWORK = """network (float[n,3,16,16] x) => (float[n,10] y)
<float[16,3,3,3] a, float[16] b, float[32,16,3,3] c, float[32] d, int64[2] flat = {0, -1}, float[32,64] e,
 float[64,10] f, float[10] g> {
  t = Conv<pads=[1,1,1,1]>(x, a, b)  u = Relu(t)  v = Conv<strides=[2,2]>(u, c, d)  w = Relu(v)
  p = GlobalAveragePool(w)  q = Reshape(p, flat)  r = MatMul(q, e)  h = Relu(r)  y = Gemm(h, f, g) }"""


def images(count: int) -> NamedArrays:
    return {"x": np.random.default_rng(0).random((count, 3, 16, 16), np.float32)}


def saved(proto: onnx.ModelProto, folder: Path) -> Path:
    onnx.save(proto, folder / "model.onnx")
    return folder / "model.onnx"


def embedding_session(model: Path, samples: NamedArrays, output: EmbeddingOutput | None = None) -> object:
    plain, proto = open_session(model, threads=1), onnx.load(model, load_external_data=False)
    return open_embedding_session(
        model, output or find_embedding(proto, "y"), plain, samples, [1, len(samples["x"])], threads=1
    )


@pytest.mark.parametrize("quantized", [False, True], ids=["float", "int8"])
def test_outputs_keep_every_bit(tmp_path: Path, quantized: bool) -> None:
    model, samples = saved(onnx_text.model(NETWORK), tmp_path), images(7)
    if quantized:
        model = _quantized(model, samples)
    plain, session = open_session(model, threads=1), embedding_session(model, samples)
    for batch in (1, 3, 7):
        expected, found = (batched_inference(one, samples).run(batch) for one in (plain, session))
        assert found["y"].tobytes() == expected["y"].tobytes()
        assert found[EMBEDDING].shape == (7, 32)
        assert len(np.unique(found[EMBEDDING], axis=0)) == 7


def test_weights_beside_the_model_are_found(tmp_path: Path) -> None:
    proto = onnx_text.model(NETWORK)
    onnx.save(proto, tmp_path / "model.onnx", save_as_external_data=True, location="weights", size_threshold=100)
    session = embedding_session(tmp_path / "model.onnx", images(2))
    assert batched_inference(session, images(2)).run(2)[EMBEDDING].shape == (2, 32)


def test_other_outputs_that_change_are_refused(tmp_path: Path) -> None:
    """By so little that it takes bits to see it."""
    model = saved(onnx_text.model(NETWORK, {"g": np.zeros(10)}), tmp_path)
    other = onnx_text.model(NETWORK, {"g": np.full(10, 1e-6)}).SerializeToString()
    output = find_embedding(onnx.load(model), "y")
    with pytest.raises(NoEmbedding, match="with what Gemm 'y' takes as an output, 'y' changes at batch 2"):
        open_embedding_session(model, output, open_session(other, threads=1), images(2), [2], threads=1)


def test_embedding_without_one_row_per_sample_is_refused(tmp_path: Path) -> None:
    text = """merged (float[n,4,8] x) => (float[n,4,5] y)
    <int64[2] rows = {-1, 8}, int64[3] back = {-1, 4, 5}, float[8,5] w> {
      h = Reshape(x, rows)  s = MatMul(h, w) y = Reshape(s, back) }"""
    model = saved(onnx_text.model(text), tmp_path)
    with pytest.raises(NoEmbedding, match=r"what MatMul 's' takes cannot be an output: .*not one entry per sample"):
        embedding_session(model, {"x": np.ones((3, 4, 8), np.float32)})


def test_tensor_that_the_runtime_does_not_know_is_refused(tmp_path: Path) -> None:
    model = saved(onnx_text.model(NETWORK), tmp_path)
    wrong = EmbeddingOutput(layer="Gemm 'y'", tensor="lost", size=64, channels_first=False)
    with pytest.raises(NoEmbedding, match="what Gemm 'y' takes cannot be an output"):
        embedding_session(model, images(2), wrong)


def _quantized(model: Path, samples: NamedArrays) -> Path:
    from onnxruntime.quantization import QuantFormat, quantize_static

    target = model.with_name("int8.onnx")
    quantize_static(model, target, Feeds([samples]), quant_format=QuantFormat.QDQ)
    return target
