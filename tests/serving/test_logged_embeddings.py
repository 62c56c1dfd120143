"""The request log has the network's penultimate outputs, and failures that are not the client's."""

import json
from pathlib import Path

import numpy as np
import onnx_text
import pytest
from monitored_bundles import embedded_outputs, images, monitored_bundle
from served_bundles import brightness_bundle, write_bundle
from server_process import json_request, serving

from gauntlet.bundle.bundle import Bundle
from gauntlet.core.signature import Signature, TensorSpec
from gauntlet.request_log.input_statistics import input_statistics
from gauntlet.request_log.log_format import EMBEDDING
from wings.lifecycle.library.log_reader import LoggedRequest, RequestLogReader

pytestmark = pytest.mark.slow
INFER, PREDICT = "/v2/models/brightness/infer", "/v2/models/brightness/predict"
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


INFER_FAILING = "/v2/models/table/infer"


@pytest.fixture(scope="module")
def failing_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of five rows: the runtime rejects an index outside of it."""
    model = onnx_text.model(
        "table (int64[n] index) => (float[n, 3] y) <float[5, 3] rows> { y = Gather<axis=0>(rows, index) }",
        {"rows": np.eye(5, 3, dtype=np.float32)},
    )
    signature = Signature(
        inputs=(TensorSpec(name="index", dtype="int64", shape=("n",)),),
        outputs=(TensorSpec(name="y", dtype="float32", shape=("n", 3)),),
        primary_output="y",
    )
    signature.write(model)
    folder = tmp_path_factory.mktemp("failing") / "b"
    return write_bundle(folder, model.SerializeToString(), signature, {"index": np.arange(5)}, name="table")


def test_failures_of_the_model_are_logged_in_their_place(failing_bundle: Path, tmp_path: Path) -> None:
    with serving(tmp_path, failing_bundle, "--request-log", tmp_path / "log", "--log-inputs", "all") as server:
        statuses = [
            server.post(INFER_FAILING, json_request({"index": np.array([index])}), x_request_id=f"r-{index}").status
            for index in (1, 99, 2)
        ]
        statuses.append(server.post(INFER_FAILING, {"inputs": []}).status)  # the client's fault
        assert statuses == [200, 422, 200, 400]
        assert server.stop() == 0
    reader, version = RequestLogReader(tmp_path / "log"), Bundle.open(failing_bundle).digest[:12]
    outcomes = list(reader.outcomes(version))
    assert [one.failure for one in outcomes] == [None, "model", None]
    assert all(one.milliseconds > 0 for one in outcomes)
    assert [one.request_id for one in reader.requests(version)] == ["r-1", "r-2"]
    assert list(reader.outcomes(version, outcomes[1].place)) == outcomes[2:]
