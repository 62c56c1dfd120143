"""What Prometheus reads."""

import shutil
import subprocess
from collections.abc import Iterator

import needs
import numpy as np
import pytest
from served_bundles import SIZE, brightness_bundle
from server_process import ServerProcess, json_request, serving

ROWS = {"image": np.ones((3, 1, SIZE, SIZE), np.float32)}
PATH = "/v2/models/brightness/infer"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("metrics")
    with serving(folder, brightness_bundle(folder / "b", latencies=[(1, 1.0), (4, 2.0)])) as running:
        yield running


def test_requests_rows_and_calls_are_counted_apart(server: ServerProcess) -> None:
    for _ in range(2):
        assert server.post(PATH, json_request(ROWS)).status == 200
    version = server.get("/v2/models/brightness").json()["versions"][0]
    for name, count in (
        ("gauntlet_requests_success_total", 2),
        ("gauntlet_rows_total", 6),
        ("gauntlet_batches_total", 2),
        ("gauntlet_request_duration_seconds_count", 2),
        ("gauntlet_queue_duration_seconds_count", 2),
        ("gauntlet_compute_duration_seconds_count", 2),
        ("gauntlet_batch_rows_sum", 6),
    ):
        assert server.metric(name, model="brightness", version=version) == count, name
    assert server.metric("gauntlet_pending_requests", model="brightness") == 0


def test_failures_are_counted_by_reason_and_unknown_models_make_no_series(server: ServerProcess) -> None:
    server.post(PATH, "{}")
    server.post("/v2/models/no-such-model/infer", "{}")
    assert server.metric("gauntlet_requests_failure_total", model="brightness", reason="invalid") == 1
    assert b"no-such-model" not in server.get("/metrics").body
    assert server.metric("gauntlet_http_responses_total", status="404") == 1


def test_promtool_finds_no_fault_in_the_names(server: ServerProcess) -> None:
    promtool = shutil.which("promtool") or needs.missing("promtool is not on the PATH (Debian package prometheus)")
    server.post(PATH, json_request(ROWS))
    text = server.get("/metrics").body
    done = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, b"")
