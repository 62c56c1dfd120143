"""Ledger and registry agree, or a promotion, a rollback and the history say where they do not."""

import json

import pytest
from mlflow import MlflowClient

from flows.record.home import Home
from gauntlet.core.errors import ConfigError, GateFailed
from wings.lifecycle.library.promotion.ledger import Ledger
from wings.lifecycle.registry.model_history import history
from wings.lifecycle.registry.model_registry import ModelRegistry
from wings.lifecycle.registry.origin import find_origin
from wings.lifecycle.registry.promote import rollback
from wings.lifecycle.registry.transaction import abandon, transaction

from .conftest import OVERRIDDEN, aliases, ask

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


def test_lines_missing_at_the_end_are_found_by_the_registry(home: Home, run, no_replay) -> None:
    run("run-1"), run("run-2", products=2)
    ask(home, "run-1")
    kept = Ledger.of(home.root, "digits").path.read_bytes()
    ask(home, "run-2")
    Ledger.of(home.root, "digits").path.write_bytes(kept)
    assert "lines are missing at its end" in str(history(home, "digits").problem)
    with pytest.raises(GateFailed, match="restore the file from a backup"):
        rollback(home, "digits")
    assert aliases(home) == {"champion": "2", "previous": "1"}


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
    bundle = run("run-2", products=2)
    interrupted(home, str(bundle.folder), monkeypatch)
    (bundle.folder / "manifest.json").unlink()
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
        version = registry.register(find_origin(home, intent.bundle))
        registry.point(intent.after, {digest: version, intent.before["champion"]: "1"})
        assert aliases(home) == {"champion": "2", "previous": "1"}
    abandon(home, registry, "the wrong model")
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


def test_interrupted_promotion_does_not_overwrite_that_of_another_home(home: Home, run, no_replay, monkeypatch) -> None:
    run("run-1"), run("run-2", products=2)
    ask(home, "run-1")
    path = Ledger.of(home.root, "digits").path
    before = path.read_bytes()
    interrupted(home, "run-2", monkeypatch)
    mine = path.read_bytes()
    path.write_bytes(before)  # as another home, with the same history, continues it
    run("run-3", products=3)
    ask(home, "run-3")
    assert aliases(home) == {"champion": "2", "previous": "1"}
    path.write_bytes(mine)
    with pytest.raises(GateFailed, match="promoted from another home"):
        recovered(home)
    assert aliases(home) == {"champion": "2", "previous": "1"}
    last = Ledger.of(home.root, "digits").entries()[-1]
    assert (last.op, "another home" in last.why) == ("undo", True)


def test_refusal_that_is_removed_from_the_ledger_is_missed(home: Home, run) -> None:
    run("run-1"), run("run-2", OVERRIDDEN)
    ask(home, "run-1")
    with pytest.raises(GateFailed, match="overridden_gates"):
        ask(home, "run-2")
    assert history(home, "digits").problem is None
    path = Ledger.of(home.root, "digits").path
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    assert "lines are missing at its end" in str(history(home, "digits").problem)
