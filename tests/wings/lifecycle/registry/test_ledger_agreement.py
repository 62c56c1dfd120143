"""Ledger and registry agree, or a promotion, a rollback and the history say where they do not."""

import json
import threading
import time
from pathlib import Path

import pytest
from mlflow import MlflowClient

from flows.cli.main import main
from flows.record.home import Home
from flows.servers.database_templates import copy_template
from flows.tracking.server import URI_VARIABLE
from gauntlet.core.errors import ConfigError, GateFailed
from wings.lifecycle.library.promotion.ledger import Ledger
from wings.lifecycle.registry import model_registry
from wings.lifecycle.registry.approval import decide
from wings.lifecycle.registry.bundle_cache import registry_of
from wings.lifecycle.registry.model_history import history
from wings.lifecycle.registry.model_registry import ModelRegistry
from wings.lifecycle.registry.promote import roll_back, rollback
from wings.lifecycle.registry.transaction import abandon, transaction

from .conftest import OVERRIDDEN, aliases, ask, make_run

pytestmark = pytest.mark.slow


def interrupted(home: Home, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask for a promotion that ends once it is in the ledger."""

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("wings.lifecycle.registry.transaction._apply", killed)
        with pytest.raises(KeyboardInterrupt):
            ask(home, source)


def recovered(home: Home) -> None:
    with transaction(home, ModelRegistry(home, home.mlflow_uri, "digits")):
        pass


def test_alias_that_somebody_else_moved_is_found(home: Home, run, no_replay) -> None:
    run("run-1"), run("run-2", products=2)
    ask(home, "run-1"), ask(home, "run-2")
    MlflowClient(home.mlflow_uri).set_registered_model_alias("digits", "champion", "1")
    found = history(home, "digits")
    assert "changed by something else: champion" in str(found.problem)
    ask(home, "run-2")  # repairs it, through a replay against what is there
    assert no_replay[-1] == "run-1 run-2"
    assert history(home, "digits").problem is None


@pytest.mark.parametrize("kept", range(5))
def test_lines_that_are_removed_at_the_end_come_back_from_the_registry(home: Home, run, no_replay, kept: int) -> None:
    run("run-1"), run("run-2", OVERRIDDEN), run("run-3", products=2)
    with pytest.raises(GateFailed, match="overridden_gates"):
        ask(home, "run-2")
    ask(home, "run-1"), ask(home, "run-3")
    path = Ledger.of(home.root, "digits").path
    whole = path.read_bytes()
    path.write_bytes(b"".join(whole.splitlines(keepends=True)[:kept]))
    assert history(home, "digits").problem is None
    assert path.read_bytes() == whole


def test_lines_that_the_registry_does_not_have_stop_every_change(home: Home, run, no_replay) -> None:
    run("run-1")
    ask(home, "run-1", why="honest")
    ledger = Ledger.of(home.root, "digits")
    whole = ledger.path.read_bytes()
    for forged in (
        whole + ledger.next_line("refuse", by="me@here")[1] + b"\n",
        whole.replace(b'"seconds"', b'"seconds" '),
    ):
        ledger.path.write_bytes(forged)
        assert "last lines are not in the ledger that the registry has" in str(history(home, "digits").problem)
        with pytest.raises(GateFailed, match="Fix: move the file away, and the registry's is copied"):
            rollback(home, "digits")
    ledger.path.unlink()
    assert (history(home, "digits").problem, ledger.path.read_bytes()) == (None, whole)


@pytest.mark.parametrize("content", [b"{}", None])
def test_line_that_was_changed_or_removed_in_mlflow_is_named(home: Home, run, content: bytes | None) -> None:
    run("run-1")
    ask(home, "run-1")
    ledger = Ledger.of(home.root, "digits")
    [stored] = home.root.rglob(f"{ledger.head}.json")
    stored.unlink() if content is None else stored.write_bytes(content)
    assert history(home, "digits").problem is None  # this home has it
    ledger.path.unlink()
    assert f"the ledger's line {stored.stem[:12]} cannot be read from the run" in str(history(home, "digits").problem)


def test_broken_chain_stops_every_change(home: Home, run) -> None:
    run("run-1")
    ask(home, "run-1", why="honest")
    path = Ledger.of(home.root, "digits").path
    path.write_bytes(path.read_bytes().replace(b"honest", b"forged"))
    found = history(home, "digits")
    assert "line 2: it does not follow" in str(found.problem)
    assert json.dumps(found.as_json())
    for change in (lambda: ask(home, "run-1"), lambda: rollback(home, "digits")):
        with pytest.raises(GateFailed, match="line 2"):
            change()


def test_intent_whose_bundle_is_gone_is_undone(home: Home, run, no_replay, monkeypatch) -> None:
    run("run-1")
    ask(home, "run-1")
    run("run-2", products=2)
    interrupted(home, "run-2", monkeypatch)
    MlflowClient(home.mlflow_uri).delete_model_version("digits", "2")
    recovered(home)
    found = history(home, "digits")
    assert [found.outcome(e) for e in found.entries if e.op == "promote"] == ["done", "undone"]
    assert (found.problem, aliases(home)) == (None, {"champion": "1"})


def test_reading_the_history_changes_nothing(home: Home, run, no_replay, monkeypatch) -> None:
    run("run-1"), run("run-2", products=2)
    ask(home, "run-1")
    interrupted(home, "run-2", monkeypatch)
    written = Ledger.of(home.root, "digits").path.read_bytes()
    found = history(home, "digits")
    assert [found.outcome(e) for e in found.entries if e.op == "promote"] == ["done", "interrupted"]
    assert (found.problem, aliases(home)) == (None, {"champion": "1"})
    assert Ledger.of(home.root, "digits").path.read_bytes() == written
    recovered(home)
    assert aliases(home) == {"champion": "2", "previous": "1"}


@pytest.mark.parametrize("applied", [False, True])
def test_interrupted_promotion_can_be_abandoned(home: Home, run, no_replay, monkeypatch, applied: bool) -> None:
    run("run-1"), run("run-2", products=2)
    ask(home, "run-1")
    interrupted(home, "run-2", monkeypatch)
    registry = ModelRegistry(home, home.mlflow_uri, "digits")
    if applied:  # killed behind the registry's change, before the ledger's commit
        intent = Ledger.of(home.root, "digits").entries()[-1]
        digest = intent.after["champion"]
        version = registry.find(digest)
        registry.point(intent.after, {digest: version, intent.before["champion"]: "1"})
        assert aliases(home) == {"champion": "2", "previous": "1"}
    assert main(["abandon", "digits", "--why", "the wrong model"]) == 0
    found = history(home, "digits")
    assert [found.outcome(e) for e in found.entries if e.op == "promote"] == ["done", "undone"]
    assert (found.problem, found.entries[-1].why, aliases(home)) == (None, "the wrong model", {"champion": "1"})
    recovered(home)
    assert aliases(home) == {"champion": "1"}
    with pytest.raises(ConfigError, match="nothing is interrupted"):
        abandon(home, registry)


def test_abandoning_changes_nothing_that_somebody_else_moved(home: Home, run, no_replay, monkeypatch) -> None:
    run("run-1"), run("run-2", products=2)
    ask(home, "run-1")
    interrupted(home, "run-2", monkeypatch)
    MlflowClient(home.mlflow_uri).delete_registered_model_alias("digits", "champion")
    with pytest.raises(GateFailed, match="something else moved champion meanwhile"):
        abandon(home, ModelRegistry(home, home.mlflow_uri, "digits"))
    assert aliases(home) == {}


def test_line_of_another_release_is_named(home: Home, run) -> None:
    run("run-1")
    ask(home, "run-1")
    registry_of(home, "digits").add_line(b'{"schema_version": 2}')
    with pytest.raises(GateFailed, match=r"is not an entry of this release \(.*Fix: use the release of the home"):
        rollback(home, "digits")


@pytest.fixture
def homes(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Home, Home]:
    """Two homes with three runs each, which one registry has."""
    monkeypatch.setattr(model_registry, "SETTLE_S", 0.05)
    copy_template("mlflow", tmp_path / "shared.db")
    uri = f"sqlite:///{tmp_path / 'shared.db'}"
    monkeypatch.setenv(URI_VARIABLE, uri)
    other = Home(tmp_path / "other")
    for number, run_id in enumerate(("a-1", "a-2", "a-3", "b-1", "b-2", "b-3"), 1):
        make_run(home if run_id.startswith("a") else other, run_id, products=number, uri=uri)
    return home, other


def runs(home: Home) -> dict[str, str]:
    """Return the run that each alias is of, as a home knows it; its history is whole."""
    found = history(home, "digits")
    assert (found.problem, found.note) == (None, None)
    return {a: next(str(e.run_id) for e in found.entries if e.digest == d) for a, d in found.aliases.items()}


def test_two_homes_have_one_history(homes: tuple[Home, Home], no_replay, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = homes
    ask(one, "a-1")
    ask(two, "b-1")
    assert no_replay == ["a-1 b-1"]
    assert runs(one) == runs(two) == {"champion": "b-1", "previous": "a-1"}
    rollback(one, "digits", "pager")
    assert runs(two) == {"champion": "a-1", "previous": "b-1"}
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "anna")
    assert ask(two, "b-2", approve=True).waits
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "bert")
    decide(one, "digits", True, "tried it")
    assert runs(one) == runs(two) == {"champion": "b-2", "previous": "a-1"}
    first, second = (Ledger.of(each.root, "digits") for each in homes)
    assert first.path.read_bytes() == second.path.read_bytes()
    assert [e.op for e in first.entries() if e.op != "commit"] == ["promote", "promote", "rollback", "ask", "promote"]


def test_what_was_interrupted_in_one_home_is_finished_in_another(
    homes: tuple[Home, Home], no_replay, monkeypatch
) -> None:
    one, two = homes
    ask(one, "a-1")
    interrupted(one, "a-2", monkeypatch)
    ask(two, "b-1")
    assert runs(one) == {"champion": "b-1", "previous": "a-2"}


def test_homes_that_change_a_model_at_once_do_not_overwrite_each_other(homes: tuple[Home, Home], no_replay) -> None:
    one, two = homes
    ask(one, "a-1"), ask(one, "a-2")
    with transaction(one, registry_of(one, "digits")) as held:
        ask(two, "b-1")
        with pytest.raises(GateFailed, match="another home changed it at the same time"):
            roll_back(held, "late")
    assert runs(one) == runs(two) == {"champion": "b-1", "previous": "a-2"}


def test_home_waits_while_another_one_changes_a_model_but_not_for_a_dead_one(
    homes: tuple[Home, Home], monkeypatch
) -> None:
    first, second = (registry_of(each, "digits") for each in homes)
    ended = list[str]()

    def wait() -> None:
        with second.alone():
            ended.append("second")

    with first.alone():
        other = threading.Thread(target=wait)
        other.start()
        time.sleep(1)
        ended.append("first")
    other.join(60)
    assert ended == ["first", "second"]
    monkeypatch.setattr(model_registry, "LEASE_S", 2)
    first._set_tag(model_registry.HOLDER, "elsewhere:/home 1")
    start = time.monotonic()
    wait()
    assert time.monotonic() - start >= 2
