"""A monitor watches the penultimate outputs that the request log keeps, and says why where there are none."""

from pathlib import Path

import pytest
from monitored_bundles import images, log_requests, monitored_bundle

from flows.cli.main import main
from gauntlet.bundle.bundle import Bundle
from wings.lifecycle.library.monitoring.monitor import monitor
from wings.lifecycle.library.monitoring.monitor_result import FeatureResult, MonitorLimits, MonitorResult

DISTANCE = "embedding distance"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return monitored_bundle(tmp_path_factory.mktemp("bundle") / "b", embedded=True)


def distance_of(result: MonitorResult) -> FeatureResult:
    return next(one for one in result.features if one.name == DISTANCE)


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
