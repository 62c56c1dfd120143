"""The distance of embeddings keeps the rate of false alarms, and corruptions of images are seen in it."""

from functools import cache

import numpy as np
import onnx_text
import pytest
from drifting_digits import CORRUPTIONS

from gauntlet.core.arrays import Array
from gauntlet.monitoring.drift_test import drift_wealth
from gauntlet.monitoring.embeddings import LEAST_SAMPLES, EmbeddingReference
from gauntlet.onnx_model.embedding_output import EMBEDDING, EmbeddingOutput, NoEmbedding, find_embedding, with_embedding
from gauntlet.runtime.session import open_session

LEVEL = 0.05
OUTPUT = EmbeddingOutput(layer="Gemm 'y'", tensor="h", size=64, channels_first=False)
NETWORK = """network (float[n,1,8,8] x) => (float[n,10] y)
<float[24,1,3,3] a, float[40,24,3,3] b, int64[2] flat = {0, -1}, float[640,64] c, float[64,10] d, float[10] e> {
  p = Conv<pads=[1,1,1,1]>(x, a)  q = Relu(p)  r = Conv<pads=[1,1,1,1], strides=[2,2]>(q, b)  s = Relu(r)
  t = Reshape(s, flat)  u = MatMul(t, c)  h = Relu(u)  y = Gemm(h, d, e) }"""


@cache
def digits() -> Array:
    from sklearn.datasets import load_digits

    return np.asarray(load_digits().images[:, None] / 16, np.float32)


@cache
def embeddings(corruption: str = "", severity: int = 0) -> Array:
    """Return what a small network's last layer takes for the digits as they are, or corrupted."""
    images, proto = digits(), onnx_text.model(NETWORK)
    if corruption:
        changed = CORRUPTIONS[corruption](images[:, 0], severity, np.random.default_rng(0))
        images = np.clip(changed, 0, 1).astype(np.float32)[:, None]
    session = open_session(with_embedding(proto, find_embedding(proto, "y")).SerializeToString(), threads=1)
    return np.asarray(session.run([EMBEDDING], {"x": images})[0])


def alarm(seed: int, samples: int, after: Array | None = None, changed: int = 0, reference: int = 400) -> int | None:
    """Return the sample after which a stream is proven to have changed; it is drawn as its reference is."""
    random, before = np.random.default_rng(seed), embeddings()
    measured = EmbeddingReference.measure(OUTPUT, before[random.integers(0, len(before), reference)])
    first = changed if after is not None else samples
    parts = [before[random.integers(0, len(before), first)]]
    if after is not None:
        parts.append(after[random.integers(0, len(after), samples - first)])
    distances = measured.distances(np.concatenate(parts))
    return drift_wealth(measured.usual, distances, seed=7000).first_above(LEVEL)  # breaks ties: of no draw above


@pytest.mark.parametrize("reference", [40, 400], ids=["fewer samples than covariances", "many samples"])
def test_undisturbed_streams_seldom_alarm_at_any_look(reference: int) -> None:
    alarms = [alarm(seed, 300, reference=reference) for seed in range(400)]
    assert sum(one is not None for one in alarms) <= LEVEL * 400


@pytest.mark.parametrize("corruption", ["blur", "noise", "contrast", "rotation"])
def test_corruption_is_seen(corruption: str) -> None:
    at = alarm(1, 1600, embeddings(corruption, 4), changed=800)
    assert at is not None and 800 <= at < 1200


def test_distances_are_of_the_evaluation_where_the_mean_was_not_taken() -> None:
    """Distances of the samples that mean and covariance come from would be too small."""
    random = np.random.default_rng(0)
    points = random.standard_normal((200, 32)).astype(np.float32)
    measured = EmbeddingReference.measure(OUTPUT, points)
    assert len(measured.usual) == 100
    later = measured.distances(random.standard_normal((2000, 32)).astype(np.float32))
    assert np.median(measured.usual) == pytest.approx(np.median(later), rel=0.1)
    assert np.median(measured.distances(points)) < 0.95 * np.median(measured.usual)


def test_values_that_are_not_finite_are_infinitely_far() -> None:
    measured = EmbeddingReference.measure(OUTPUT, np.random.default_rng(0).standard_normal((100, 4)))
    found = measured.distances(np.array([[np.nan, 0, 0, 0], [np.inf, -np.inf, 0, 0], [0, 0, 0, 0]], np.float32))
    assert found[:2].tolist() == [np.inf, np.inf]
    assert np.isfinite(found[2])


def test_embedding_that_never_varies_can_be_measured() -> None:
    measured = EmbeddingReference.measure(OUTPUT, np.ones((100, 4), np.float32))
    assert measured.usual.tolist() == [0.0] * 50
    assert measured.distances(np.full((1, 4), 2.0)) > 0


def test_too_few_samples_are_refused() -> None:
    with pytest.raises(NoEmbedding, match=f"19 samples have a finite embedding; it takes {LEAST_SAMPLES}"):
        EmbeddingReference.measure(OUTPUT, np.ones((19, 4), np.float32))
