"""The service logs the network's penultimate outputs beside unchanged outputs."""

import json
from pathlib import Path

import numpy as np
import pytest
from monitored_bundles import embedded_outputs, images, monitored_bundle
from served_bundles import brightness_bundle
from server_process import json_request, serving

from gauntlet.bundle.bundle import Bundle
from gauntlet.onnx_model.embedding_output import EMBEDDING
from gauntlet.request_log.input_statistics import input_statistics
from wings.lifecycle.library.log_reader import LoggedRequest, RequestLogReader

INFER, PREDICT = "/v2/models/brightness/infer", "/v2/models/brightness/predict"
DISTANCE = "embedding distance"
FIVE = images(1, 5)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return monitored_bundle(tmp_path_factory.mktemp("bundle") / "b", embedded=True)


def logged(log: Path, bundle: Path) -> dict[str, LoggedRequest]:
    found = RequestLogReader(log).requests(Bundle.open(bundle).digest[:12])
    return {request.request_id: request for request in found}


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
