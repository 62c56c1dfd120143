"""A champion against the one before it: equal risks are seldom called harm, higher ones are found, by class names."""

import time
from pathlib import Path

import numpy as np
import pytest
from monitored_bundles import images, log_requests, monitored_bundle
from served_bundles import SIZE

from gauntlet.bundle.bundle import CONTRACT, Bundle, seal
from gauntlet.bundle.contract import Contract
from serving.request_log.writer import RequestLog, RequestLogConfig
from wings.lifecycle.library.monitoring.monitor import monitor
from wings.lifecycle.library.monitoring.monitor_result import MonitorLimits, PreviousResult
from wings.lifecycle.library.monitoring.predecessor import Predecessor, paired_wealth

LEVEL = 0.025


def pairs(seed: int, champion: float, previous: float, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return losses of two models that err on different samples."""
    random = np.random.default_rng(seed)
    return (random.random(count) < champion).astype(float), (random.random(count) < previous).astype(float)


@pytest.mark.parametrize(("champion", "drop"), [(0.1, 0.0), (0.11, 0.01)])
def test_champion_within_its_limit_is_seldom_called_harmful_at_any_look(champion: float, drop: float) -> None:
    streams = [pairs(seed, champion, 0.1, 2000) for seed in range(200)]
    false = sum(paired_wealth(*one, drop).first_above(LEVEL) is not None for one in streams)
    assert false < 0.05 * len(streams)


def test_worse_champion_is_found_and_a_better_one_is_not() -> None:
    found = [paired_wealth(*pairs(seed, 0.2, 0.1, 3000), 0.01).first_above(LEVEL) for seed in range(20)]
    assert all(one is not None for one in found)
    assert all(paired_wealth(*pairs(seed, 0.1, 0.2, 3000), 0.01).first_above(LEVEL) is None for seed in range(20))


@pytest.fixture
def champion(tmp_path: Path) -> Path:
    return monitored_bundle(tmp_path / "champion")


def changed(source: Path, folder: Path, **signature: object) -> Bundle:
    """Return a bundle with another signature and the same model."""
    monitored_bundle(folder)
    contract = Bundle.open(source).contract
    other: Contract = contract.replace(signature=contract.signature.replace(**signature))
    (folder / CONTRACT).write_text(other.model_dump_json())
    seal(folder)
    return Bundle.open(folder)


def compared(champion: Path, previous: Bundle, log: Path) -> PreviousResult:
    result, _ = monitor(Bundle.open(champion), log, MonitorLimits(), previous=Predecessor(previous, since=0))
    assert result.previous is not None
    return result.previous


def test_classes_are_compared_by_name(champion: Path, tmp_path: Path) -> None:
    log_requests(tmp_path / "log", champion, images(1, 60), wrong=[False] * 60)
    labels = Bundle.open(champion).contract.signature.labels
    other = changed(champion, tmp_path / "other", labels=tuple(reversed(labels)))
    found = compared(champion, other, tmp_path / "log")
    middle = found.compared - found.previous_wrong  # of three reversed classes, the middle one keeps its index
    assert (found.compared, found.wrong) == (60, 0)
    assert 0 < middle < 60


def test_looking_often_gives_what_one_look_gives(champion: Path, tmp_path: Path) -> None:
    other = changed(champion, tmp_path / "other", labels=("x", "y", "z"))
    for part in range(3):
        for log in (tmp_path / "often", tmp_path / "once"):
            log_requests(log, champion, images(part, 20), name=str(part), wrong=[False] * 20)
        last = compared(champion, other, tmp_path / "often")
    whole = compared(champion, other, tmp_path / "once")
    assert (last.compared, last.previous_wrong, last.evidence) == (60, 60, whole.evidence)
    assert whole.alarm_at is None and not whole.harm


def test_all_tests_together_keep_the_level_when_a_champion_is_compared(champion: Path, tmp_path: Path) -> None:
    log_requests(tmp_path / "log", champion, images(1, 20), wrong=[False] * 20)
    limits, previous = MonitorLimits(false_alarms=0.04), Predecessor(changed(champion, tmp_path / "other"), since=0)
    found, _ = monitor(Bundle.open(champion), tmp_path / "log", limits, previous=previous)
    assert found.risk is not None and found.previous is not None and found.limits == limits
    tests = [*found.features, *found.service, found.risk, found.previous, *found.previous.service]
    share_of_the_reference = 10**-found.risk.threshold
    assert sum(10**-one.threshold for one in tests) + share_of_the_reference == pytest.approx(0.04)


def test_model_that_takes_other_inputs_is_not_compared(champion: Path, tmp_path: Path) -> None:
    log_requests(tmp_path / "log", champion, images(1, 20), wrong=[True] * 20)
    how = Bundle.open(champion).contract.signature.preprocessing
    other = changed(champion, tmp_path / "other", preprocessing=how.replace(std=(0.5,)))
    found = compared(champion, other, tmp_path / "log")
    assert (found.note, found.compared) == ("the previous champion takes other inputs than the log has", 0)


def test_without_logged_inputs_nothing_is_compared(champion: Path, tmp_path: Path) -> None:
    log_requests(tmp_path / "log", champion, images(1, 20), wrong=[True] * 20, keep="statistics")
    found = compared(champion, Bundle.open(champion), tmp_path / "log")
    assert (found.compared, found.left_out, found.harm) == (0, 20, ())


def log_broken(log: Path, bundle: Path, value: float, failure: str = "") -> None:
    """Log a request in each of 40 windows of ten seconds: without finite outputs, or refused."""
    opened, now = Bundle.open(bundle), time.time()
    writer = RequestLog(RequestLogConfig(folder=log, inputs="all"))
    one = {"image": np.full((1, 1, SIZE, SIZE), value, np.float32)}, {"y": np.full((1, 3), np.nan, np.float32)}
    with pytest.MonkeyPatch.context() as patch:
        for number in range(400):
            patch.setattr("serving.request_log.writer.time.time", lambda at=now + number: at)
            if failure:
                writer.add_failure(str(number), opened.digest[:12], failure, 0.1)
            else:
                writer.add(str(number), opened.digest[:12], opened.contract.signature, *one, 0.001)
    writer.close()


@pytest.mark.parametrize(
    ("value", "failure", "rolls_back"),
    [(0.5, "", True), (3e38, "", False), (0.0, "error", True), (0.0, "model", False)],
    ids=["own fault", "shared fault", "failure", "refused inputs"],
)
def test_fault_that_the_previous_champion_shares_rolls_nothing_back(
    champion: Path, tmp_path: Path, value: float, failure: str, rolls_back: bool
) -> None:
    log_broken(tmp_path / "log", champion, value, failure)
    result, _ = monitor(
        Bundle.open(champion), tmp_path / "log", MonitorLimits(), previous=Predecessor(Bundle.open(champion), since=0)
    )
    assert result.verdict == "harmful"
    assert bool(result.previous.harm) == rolls_back
