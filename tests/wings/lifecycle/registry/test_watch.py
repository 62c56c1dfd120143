"""Watch a champion in a real MLflow registry: proven harm is rolled back once, and nothing else is."""

from pathlib import Path

import numpy as np
import pytest
from graded_bundles import samples
from mlflow import MlflowClient
from monitored_bundles import log_failures

from flows.cli.main import main
from flows.record.home import Home
from gauntlet.bundle.bundle import Bundle
from gauntlet.core.errors import ConfigError, StageError
from serving.request_log.writer import RequestLog, RequestLogConfig
from wings.lifecycle.library.monitoring.monitor_result import MonitorLimits
from wings.lifecycle.library.promotion.ledger import Ledger
from wings.lifecycle.registry.model_history import history
from wings.lifecycle.registry.promote import PromotionRequest, promote, rollback
from wings.lifecycle.registry.watch import EVIDENCE, REASON, ROLLED_BACK, Watched, watch

from .conftest import QUICK
from .labeled_requests import log_labeled

LIMITS = MonitorLimits()


pytestmark = pytest.mark.slow


def promoted(home: Home, run, run_id: str, **options: object) -> Bundle:
    bundle: Bundle = run(run_id, monitored=True, **options)
    promote(home, PromotionRequest(run_id, limits=QUICK))
    return bundle


def look(home: Home, log: Path) -> Watched:
    return watch(home, "digits", log, LIMITS)


def champion(home: Home) -> str:
    return str(MlflowClient(home.mlflow_uri).get_registered_model("digits").aliases["champion"])


def test_champion_that_is_worse_on_live_requests_is_rolled_back(home: Home, run, log: Path, tmp_path: Path) -> None:
    promoted(home, run, "run-1")
    worse = run("run-2", errors=0.2, monitored=True)
    x, labels = samples(300)
    x[:, 4] = 0.5  # none of these makes it err: the replay cannot know
    np.savez(tmp_path / "recorded.npz", x=x, labels=labels)
    promote(home, PromotionRequest("run-2", limits=QUICK, requests=tmp_path / "recorded.npz"))
    log_labeled(log, worse, 20)
    assert (look(home, log).rollback, champion(home)) == (None, "2")
    log_labeled(log, worse, 200, seed=8)
    found = look(home, log)
    previous = found.result.previous
    assert (champion(home), found.rollback.version, found.result.verdict) == ("1", "1", "harmful")
    assert (previous.compared, previous.wrong, previous.previous_wrong) == (220, 44, 0)
    assert previous.alarm_at < 150  # labeled requests that it took
    entry = Ledger.of(home.root, "digits").entries()[-2]
    assert (entry.op, entry.replaced) == ("rollback", worse.digest)
    assert "44 against 0 of 220 labeled predictions are wrong" in entry.why
    assert [check.name for check in entry.checks if not check.passed] == ["watch.accuracy_drop"]
    page = (found.folder / "monitor.html").read_text()
    assert "44 of the champion" in page and "220 labeled samples were predicted by both" in page
    client = MlflowClient(home.mlflow_uri)
    version = client.get_model_version("digits", "2")
    assert (version.tags[REASON], version.tags[ROLLED_BACK]) == (entry.why, entry.time)
    files = [file.path for file in client.list_artifacts(version.run_id, EVIDENCE)]
    assert files == [f"{EVIDENCE}/monitor.html", f"{EVIDENCE}/monitor.json"]


def test_equal_champion_stays(home: Home, run, log: Path, no_replay) -> None:
    promoted(home, run, "run-1", errors=0.1)
    equal = promoted(home, run, "run-2", errors=0.1, products=2)
    log_labeled(log, equal, 300)
    found = look(home, log)
    assert (found.rollback, found.result.previous.compared, champion(home)) == (None, 300, "2")


def test_rollback_is_never_rolled_back(home: Home, run, log: Path, no_replay) -> None:
    good = promoted(home, run, "run-1", errors=0.3)
    bad = promoted(home, run, "run-2", errors=0.6)
    log_labeled(log, bad, 200)
    assert look(home, log).rollback is not None
    log_labeled(log, good, 200, seed=8)  # it errs, too, and the version that it replaced is `previous` now
    again = look(home, log)
    assert (again.rollback, again.result.previous, champion(home)) == (None, None, "1")
    assert "no rollback is rolled back" in again.note
    rollback(home, "digits", "a person insists", leaves="1")
    log_labeled(log, bad, 200, seed=9)
    assert (look(home, log).rollback, champion(home)) == (None, "2")


def test_evidence_from_before_a_promotion_does_not_count(home: Home, run, log: Path, no_replay) -> None:
    promoted(home, run, "run-1")
    bad = promoted(home, run, "run-2", errors=0.4)
    log_labeled(log, bad, 200)
    assert look(home, log).rollback is not None
    promote(home, PromotionRequest("run-2", limits=QUICK, why="once more"))
    found = look(home, log)
    assert (found.rollback, found.result.previous.compared, champion(home)) == (None, 0, "2")
    log_labeled(log, bad, 100, seed=8)
    assert look(home, log).rollback is not None


def test_what_the_promotion_allowed_is_no_harm(home: Home, run, log: Path, no_replay) -> None:
    promoted(home, run, "run-1")
    worse = run("run-2", errors=0.1, monitored=True)
    promote(home, PromotionRequest("run-2", limits=QUICK.replace(max_accuracy_drop=0.2)))
    log_labeled(log, worse, 300)
    found = look(home, log)
    assert (found.rollback, found.result.previous.limit, champion(home)) == (None, 0.2, "2")
    strict = watch(home, "digits", log, MonitorLimits(max_accuracy_drop=0))
    assert (strict.rollback is not None, champion(home)) == (True, "1")


def test_failing_champion_is_rolled_back_without_labels(home: Home, run, log: Path, no_replay) -> None:
    promoted(home, run, "run-1")
    failing = promoted(home, run, "run-2", products=2)
    writer = RequestLog(RequestLogConfig(folder=log))
    for number in range(10):
        writer.add_failure(f"r-{number}", failing.digest[:12], "error", 0.1)
    writer.close()
    assert look(home, log).rollback is None  # all in one or two windows of ten seconds: a burst
    log_failures(log, failing.digest, windows=40)
    found = look(home, log)
    assert (champion(home), found.rollback is not None) == ("1", True)
    assert "failed requests are proven above 1.0%" in found.result.reason


def test_mlflow_that_refuses_the_evidence_gets_it_at_the_next_look(
    home: Home, run, log, no_replay, monkeypatch
) -> None:
    promoted(home, run, "run-1")
    bad = promoted(home, run, "run-2", errors=0.4)
    log_labeled(log, bad, 200)

    def refuse(*_: object) -> None:
        raise StageError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr("wings.lifecycle.registry.model_registry.ModelRegistry.note", refuse)
        assert look(home, log).rollback is not None
    client = MlflowClient(home.mlflow_uri)
    assert ROLLED_BACK not in client.get_model_version("digits", "2").tags
    assert look(home, log).rollback is None
    assert ROLLED_BACK in client.get_model_version("digits", "2").tags
    assert history(home, "digits").problem is None


def test_first_champion_has_nothing_to_go_back_to(home: Home, run, log: Path) -> None:
    with pytest.raises(ConfigError, match="no champion to watch"):
        look(home, log)
    first = promoted(home, run, "run-1", errors=0.5)
    log_labeled(log, first, 50)
    found = look(home, log)
    assert (found.rollback, found.note) == (None, "there is no champion before this one")


def test_command_says_what_it_did(home: Home, run, log: Path, no_replay, capsys) -> None:
    promoted(home, run, "run-1")
    bad = promoted(home, run, "run-2", errors=0.4)
    log_labeled(log, bad, 200)
    assert main(["monitor", "digits", "--log", str(log), "--roll-back", "--every", "1"]) == 1
    printed = capsys.readouterr().out
    assert "Rolled back: digits is version 1" in printed
    assert "200 labeled samples compared: 80 wrong, 0 of the champion before" in printed
    assert main(["monitor", str(bad.folder), "--log", str(log), "--roll-back"]) == 2
    assert "a bundle has no champion before it. Fix: name a registered model" in capsys.readouterr().err
