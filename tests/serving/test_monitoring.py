"""What Prometheus reads, and that the rules and the dashboard of docker/monitoring name metrics that the server has."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import needs
import numpy as np
import pytest
import yaml
from served_bundles import SIZE, brightness_bundle
from server_process import ServerProcess, json_request, serving

from serving.observations import REASONS

FOLDER = Path(__file__).parents[2] / "docker" / "monitoring"
RULES: list[dict[str, Any]] = yaml.safe_load((FOLDER / "rules.yaml").read_text())["groups"][0]["rules"]
DASHBOARD: dict[str, Any] = json.loads((FOLDER / "dashboard.json").read_text())
PANELS = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
ANNOTATIONS = [annotation["expr"] for annotation in DASHBOARD["annotations"]["list"]]
METRIC = re.compile(r"\b((?:model|model_reason):gauntlet_\w+:\w+|(?:gauntlet|process)_\w+)\b")
ROWS = {"image": np.ones((3, 1, SIZE, SIZE), np.float32)}
PATH = "/v2/models/brightness/infer"


@pytest.fixture(scope="module")
def promtool() -> str:
    return shutil.which("promtool") or needs.missing("promtool is not on the PATH (Debian package prometheus)")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("monitoring")
    with serving(folder, brightness_bundle(folder / "b", latencies=[(1, 1.0), (4, 2.0)])) as running:
        yield running


def test_every_metric_is_one_of_the_server_from_its_start(server: ServerProcess) -> None:
    """Also those of failures: Prometheus sees no increase of a series that begins with its first failure."""
    recorded = {rule["record"] for rule in RULES if "record" in rule}
    lines = server.get("/metrics").body.decode().splitlines()
    samples = {re.split(r"[{ ]", line)[0] for line in lines if not line.startswith("#")}
    expressions = [*PANELS, *ANNOTATIONS, *(rule["expr"] for rule in RULES)]
    used = {name for expression in expressions for name in METRIC.findall(expression)}
    assert len(used) > 10
    assert used <= samples | recorded
    failures = [line for line in lines if re.match(r'gauntlet_requests_failure_total{.*reason="\w+"', line)]
    assert len(failures) == len(REASONS)
    assert 'gauntlet_model_loads_total{model="brightness",outcome="failure"} 0.0' in lines


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


def test_promtool_finds_no_fault_in_the_names(server: ServerProcess, promtool: str) -> None:
    server.post(PATH, json_request(ROWS))
    text = server.get("/metrics").body
    done = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, b"")


def test_each_alert_fires_when_it_should_and_not_before(promtool: str) -> None:
    subprocess.run([promtool, "check", "rules", "rules.yaml"], cwd=FOLDER, check=True)
    subprocess.run([promtool, "test", "rules", "rules-test.yaml"], cwd=FOLDER, check=True)
    tested = yaml.safe_load((FOLDER / "rules-test.yaml").read_text())["tests"]
    fired = {case["alertname"] for test in tested for case in test["alert_rule_test"] if case.get("exp_alerts")}
    silent = {case["alertname"] for test in tested for case in test["alert_rule_test"] if not case.get("exp_alerts")}
    assert fired == silent == {rule["alert"] for rule in RULES if "alert" in rule}


def test_expressions_of_the_dashboard_are_valid(promtool: str, tmp_path: Path) -> None:
    rules = [{"record": f"panel:{n}", "expr": e.replace("$model", ".+")} for n, e in enumerate(PANELS + ANNOTATIONS)]
    (tmp_path / "panels.yaml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    subprocess.run([promtool, "check", "rules", tmp_path / "panels.yaml"], check=True)


def test_prometheus_reads_the_configuration(promtool: str, tmp_path: Path) -> None:
    for name in ("prometheus.yaml", "rules.yaml"):
        shutil.copy(FOLDER / name, tmp_path)
    (tmp_path / "serving-token").write_text("0123456789abcdef")
    subprocess.run([promtool, "check", "config", tmp_path / "prometheus.yaml"], check=True)
