"""The service logs the network's penultimate outputs beside unchanged outputs, and a monitor watches them."""

import json
from pathlib import Path

import numpy as np
import pytest
from monitored_bundles import embedded_outputs, images, log_requests, monitored_bundle
from served_bundles import brightness_bundle
from server_process import json_request, serving

from flows.cli.main import main
from gauntlet.bundle.bundle import Bundle
from gauntlet.monitoring.features import input_statistics
from gauntlet.monitoring.monitor import monitor
from gauntlet.monitoring.request_log import LoggedRequest, RequestLogReader
from gauntlet.monitoring.result import FeatureResult, MonitorLimits, MonitorResult
from gauntlet.onnx_model.embedding_output import EMBEDDING

INFER, PREDICT = "/v2/models/brightness/infer", "/v2/models/brightness/predict"
DISTANCE = "embedding distance"
FIVE = images(1, 5)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return monitored_bundle(tmp_path_factory.mktemp("bundle") / "b", embedded=True)


def logged(log: Path, bundle: Path) -> dict[str, LoggedRequest]:
    found = RequestLogReader(log).requests(Bundle.open(bundle).digest[:12])
    return {request.request_id: request for request in found}


def distance_of(result: MonitorResult) -> FeatureResult:
    return next(one for one in result.features if one.name == DISTANCE)


@pytest.mark.parametrize("policy", ["embeddings", "all"])
def test_each_request_is_logged_with_its_embedding(bundle: Path, tmp_path: Path, white_png: bytes, policy: str) -> None:
    with serving(tmp_path, bundle, "--request-log", tmp_path / "log", "--log-inputs", policy) as server:
        response = server.post(INFER, json_request(FIVE), x_request_id="five")
        assert [output["name"] for output in response.json()["outputs"]] == ["y"]
        assert server.post(PREDICT, white_png, content_type="image/png", x_request_id="white").status == 200
        server.stop()  # writes what is queued
    found, expected = logged(tmp_path / "log", bundle), embedded_outputs(bundle, FIVE)[0]
    five = found["five"]
    assert [*five.outputs] == ["y"]
    assert np.allclose(five.embedding, expected[EMBEDDING], atol=1e-6)  # type: ignore[arg-type]
    assert found["white"].embedding == pytest.approx(np.ones((1, 1)))
    assert (five.inputs is not None) == (policy == "all")
    if policy == "embeddings":
        signature = Bundle.open(bundle).contract.signature
        assert np.allclose(five.statistics, input_statistics(FIVE, signature), atol=1e-6)  # type: ignore[arg-type]


def test_by_default_nothing_of_it_is_computed_or_logged(bundle: Path, tmp_path: Path) -> None:
    with serving(tmp_path, bundle, "--request-log", tmp_path / "log") as server:
        assert server.post(INFER, json_request(FIVE), x_request_id="five").status == 200
        server.stop()
    assert logged(tmp_path / "log", bundle)["five"].embedding is None


def test_bundle_without_embeddings_is_served_and_the_log_says_why(tmp_path: Path) -> None:
    old = brightness_bundle(tmp_path / "b", latencies=[(1, 1.0)])
    with serving(tmp_path, old, "--request-log", tmp_path / "log", "--log-inputs", "embeddings") as server:
        assert server.post(INFER, json_request(FIVE), x_request_id="five").status == 200
        server.stop()
    warnings = [line for line in server.logs.read_text().splitlines() if "the request log has no embeddings" in line]
    assert "the bundle has no monitoring.npz" in json.loads(warnings[0])["reason"]
    one = logged(tmp_path / "log", old)["five"]
    assert one.embedding is None and one.statistics is not None


def test_monitor_notices_what_the_embedding_shows(bundle: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log_requests(log, bundle, images(2, 300), keep="embeddings")
    result, _ = monitor(Bundle.open(bundle), log, MonitorLimits())
    assert result.verdict == "no alarm" and distance_of(result).samples == 300
    log_requests(log, bundle, images(3, 200, (0.97, 1.0)), name="white", keep="embeddings")
    result, folder = monitor(Bundle.open(bundle), log, MonitorLimits())
    alarm = distance_of(result).alarm_at
    assert alarm is not None and 300 <= alarm < 500
    assert DISTANCE in (folder / "monitor.html").read_text()


def test_log_without_embeddings_is_watched_without_them(bundle: Path, tmp_path: Path) -> None:
    log_requests(tmp_path / "log", bundle, images(2, 300), keep="statistics")
    result, folder = monitor(Bundle.open(bundle), tmp_path / "log", MonitorLimits())
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
