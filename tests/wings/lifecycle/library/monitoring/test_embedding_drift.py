"""The distance of embeddings keeps the rate of false alarms, and corruptions of images are seen in it."""

from functools import cache
from pathlib import Path

import numpy as np
import onnx_text
import pytest
from drifting_digits import CORRUPTIONS
from monitored_bundles import images, log_requests, monitored_bundle

from flows.cli.main import main
from gauntlet.bundle.bundle import Bundle
from gauntlet.core.arrays import Array
from gauntlet.request_log.log_format import EMBEDDING
from gauntlet.runtime.session import open_session
from wings.lifecycle.library.monitoring.drift_evidence import drift_wealth
from wings.lifecycle.library.monitoring.embedding_output import EmbeddingOutput, with_embedding
from wings.lifecycle.library.monitoring.embedding_search import find_embedding
from wings.lifecycle.library.monitoring.embeddings import EmbeddingReference
from wings.lifecycle.library.monitoring.monitor import monitor
from wings.lifecycle.library.monitoring.monitor_result import FeatureResult, MonitorLimits, MonitorResult

pytestmark = pytest.mark.slow
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


DISTANCE = "embedding distance"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return monitored_bundle(tmp_path_factory.mktemp("bundle") / "b", embedded=True)


def distance_of(result: MonitorResult) -> FeatureResult:
    return next(one for one in result.features if one.name == DISTANCE)


def test_monitor_notices_what_the_embedding_shows(bundle: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log_requests(log, bundle, images(2, 300), keep="embeddings")
    result, _ = monitor(Bundle.open(bundle), log, MonitorLimits(season_h=0))
    assert result.verdict == "no alarm" and distance_of(result).samples == 300
    log_requests(log, bundle, images(3, 200, (0.97, 1.0)), name="white", keep="embeddings")
    result, folder = monitor(Bundle.open(bundle), log, MonitorLimits(season_h=0))
    alarm = distance_of(result).alarm_at
    assert alarm is not None and 300 <= alarm < 500
    assert DISTANCE in (folder / "monitor.html").read_text()


def test_log_without_embeddings_is_watched_without_them(bundle: Path, tmp_path: Path) -> None:
    log_requests(tmp_path / "log", bundle, images(2, 300), keep="statistics")
    result, folder = monitor(Bundle.open(bundle), tmp_path / "log", MonitorLimits(season_h=0))
    assert distance_of(result).samples == 0
    assert (
        result.estimate is not None and result.estimate.reason != "the log does not have the statistics of all inputs"
    )
    assert "not in the log" in (folder / "monitor.html").read_text()


def test_monitor_says_why_a_model_has_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = monitored_bundle(tmp_path / "b")
    log_requests(tmp_path / "log", plain, images(2, 20), keep="statistics")
    assert main(["monitor", str(plain), "--log", str(tmp_path / "log")]) == 0
    why = "penultimate outputs are not watched: its reference has no embeddings. Fix: make the bundle again"
    assert why in capsys.readouterr().out
    assert "its reference has no embeddings" in (next((tmp_path / "log").rglob("monitor.html"))).read_text()
