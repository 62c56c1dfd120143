"""A promotion that waits for another person: what it changes, who may answer, and what the ledger keeps."""

import json
import os
import socket
from pathlib import Path

import psutil
import pytest
from harness import called

from flows.record.home import Home
from flows.servers.local_servers import began
from gauntlet.core.errors import ConfigError, GateFailed
from gauntlet.core.report import Check
from wings.lifecycle.library.promotion.ledger import Ledger
from wings.lifecycle.registry.approval import decide
from wings.lifecycle.registry.model_history import history

from .conftest import MakeRun, aliases, ask

pytestmark = pytest.mark.slow


@pytest.fixture
def asked(home: Home, run: MakeRun, no_replay: list[str], monkeypatch: pytest.MonkeyPatch) -> Home:
    """A home with a champion, and a promotion that anna has asked for; bert answers."""
    run("run-1")
    ask(home, "run-1")
    run("run-2", errors=0.001)
    sign_in(monkeypatch, "anna")
    assert ask(home, "run-2", approve=True).waits
    sign_in(monkeypatch, "bert")
    return home


def sign_in(monkeypatch: pytest.MonkeyPatch, account: str) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", account)


def outcomes(home: Home) -> list[str]:
    past = history(home, "digits")
    assert past.problem is None
    return [past.outcome(entry) for entry in past.entries if entry.op not in ("commit", "undo")]


def test_promotion_that_waits_changes_nothing_and_asks_once(asked: Home) -> None:
    assert aliases(asked) == {"champion": "1"}
    assert outcomes(asked) == ["done", "waits"]
    assert ask(asked, "run-2", approve=True).waits
    assert outcomes(asked) == ["done", "waits"]


def test_another_person_approves_and_the_ledger_says_who_and_why(asked: Home) -> None:
    done = decide(asked, "digits", True, "tried it")
    assert (done.changed, done.version, aliases(asked)) == (True, "2", {"champion": "2", "previous": "1"})
    question, answer, _ = Ledger.of(asked.root, "digits").entries()[-3:]
    assert (question.by.split()[0], answer.by.split()[0], answer.why) == ("anna", "bert", "tried it")
    assert (answer.asked, answer.replay, answer.checks) == (question.number, question.replay, question.checks)
    assert question.replay is not None
    assert outcomes(asked) == ["done", "approved", "done"]
    with pytest.raises(ConfigError, match="no promotion waits"):
        decide(asked, "digits", True, "again")


def test_refused_promotion_changes_nothing_and_can_be_asked_again(asked: Home) -> None:
    decide(asked, "digits", False, "not on a Friday")
    assert aliases(asked) == {"champion": "1"}
    assert outcomes(asked) == ["done", "refused", "refused"]
    assert ask(asked, "run-2", approve=True).waits
    assert outcomes(asked)[-1] == "waits"


def test_who_asks_cannot_answer(asked: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    sign_in(monkeypatch, "anna")
    for approved, machine in ((True, socket.gethostname()), (False, socket.gethostname()), (True, "another")):
        monkeypatch.setattr("socket.gethostname", lambda name=machine: name)
        with pytest.raises(ConfigError, match="another person has to answer"):
            decide(asked, "digits", approved, "it is mine")
    assert outcomes(asked) == ["done", "waits"]


def test_account_of_the_home_s_own_mlflow_is_no_person(
    home: Home, run: MakeRun, no_replay: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise one could ask on Prefect's page, whose runs have the account, and answer in a terminal."""
    me = {"pid": os.getpid(), "began": began(psutil.Process()), "url": home.mlflow_uri}
    (home.root / "mlflow-server.json").write_text(json.dumps(me))
    run("run-1")
    ask(home, "run-1")
    run("run-2", errors=0.001)
    sign_in(monkeypatch, "gauntlet")
    assert ask(home, "run-2", approve=True).waits
    monkeypatch.delenv("MLFLOW_TRACKING_USERNAME")
    with pytest.raises(ConfigError, match="another person has to answer"):
        decide(home, "digits", True, "it is mine")


def test_approval_counts_for_the_champion_that_it_was_compared_with(asked: Home, run: MakeRun) -> None:
    run("run-3", errors=0.002)
    ask(asked, "run-3")
    with pytest.raises(GateFailed, match="the aliases have changed since line 3"):
        decide(asked, "digits", True, "late")
    assert aliases(asked) == {"champion": "3", "previous": "1"}


def test_what_is_not_good_enough_does_not_wait(home: Home, run: MakeRun) -> None:
    run("run-1", Check.of("accuracy.max_accuracy_drop", 0.03, "<=", 0.01), verdict="failed")
    with pytest.raises(GateFailed):
        ask(home, "run-1", name="digits", approve=True)
    assert outcomes(home) == ["refused"]


def test_two_people_at_two_terminals(home: Home, run: MakeRun, tmp_path: Path) -> None:
    run("run-1")
    known = {"GAUNTLET_HOME": str(home.root)}
    one = called(tmp_path, "promote", "run-1", "--approve", MLFLOW_TRACKING_USERNAME="anna", **known)
    assert (one.returncode, one.stderr) == (0, "")
    assert "waits for another person: gauntlet approve digits --why TEXT" in one.stdout
    same = called(tmp_path, "approve", "digits", "--why", "mine", MLFLOW_TRACKING_USERNAME="anna", **known)
    assert same.returncode == 2 and "another person has to answer" in same.stderr
    assert "Traceback" not in same.stderr
    two = called(tmp_path, "approve", "digits", "--why", "tried", MLFLOW_TRACKING_USERNAME="bert", **known)
    assert (two.returncode, two.stderr) == (0, "")
    assert "version 1" in two.stdout and "is now the champion" in two.stdout
    shown = called(tmp_path, "history", "digits", "--json", **known)
    ops = [(entry["op"], entry["by"].split()[0]) for entry in json.loads(shown.stdout)["entries"]]
    assert ops == [("ask", "anna"), ("promote", "bert"), ("commit", "bert")]
