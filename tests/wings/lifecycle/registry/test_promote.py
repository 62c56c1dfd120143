"""Promote and roll back in a real MLflow registry: aliases, versions, the ledger, and what is refused."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from bundles import make_keys
from graded_bundles import make_bundle, samples
from mlflow import MlflowClient

import gauntlet
from flows.cli.main import main
from flows.record.home import Home
from flows.record.locks import is_locked
from flows.servers.local_servers import start_mlflow, stop
from flows.servers.ports import Port
from flows.tracking.server import URI_VARIABLE
from gauntlet.bundle.bundle import seal
from gauntlet.bundle.trust import TRUSTED_KEYS
from gauntlet.core.errors import ConfigError, GateFailed, StageError
from gauntlet.core.report import Check
from gauntlet.core.run_report import RunReport
from wings.lifecycle.library.promotion.ledger import Ledger
from wings.lifecycle.library.promotion.replay_facts import ReplayFacts
from wings.lifecycle.registry import promote as promotion
from wings.lifecycle.registry.model_history import history
from wings.lifecycle.registry.model_registry import ModelRegistry
from wings.lifecycle.registry.origin import find_origin
from wings.lifecycle.registry.promote import roll_back, rollback
from wings.lifecycle.registry.transaction import transaction

from .conftest import OVERRIDDEN, aliases, ask

pytestmark = pytest.mark.slow


def test_first_champion_needs_no_replay_and_is_one_version(home: Home, run) -> None:
    bundle = run("run-1")
    done = ask(home, "run-1", why="first")
    assert (done.version, done.changed, aliases(home)) == ("1", True, {"champion": "1"})
    version = MlflowClient(home.mlflow_uri).get_model_version("digits", "1")
    assert version.tags["bundle.digest"] == bundle.digest
    assert version.tags["accuracy"] == "0.97"
    assert version.description.startswith("small on ort-cpu, of run run-1: ")
    assert "gauntlet history digits" in MlflowClient(home.mlflow_uri).get_registered_model("digits").description
    assert (version.tags["winner"], version.tags["gauntlet.run_id"]) == ("small", "run-1")
    assert MlflowClient(home.mlflow_uri).get_run(version.run_id).info.run_name == "run-1"
    entries = Ledger.of(home.root, "digits").entries()
    assert [entry.op for entry in entries] == ["promote", "commit"]
    assert (entries[0].why, entries[0].run_id, entries[0].digest) == ("first", "run-1", bundle.digest)
    assert [gate.name for gate in entries[0].gates] == ["structure.nodes"]
    assert gauntlet.load("models:/digits@champion").bundle.digest == bundle.digest
    with pytest.raises(ConfigError, match="models:digits: not an address of a model; write models:/NAME@ALIAS"):
        gauntlet.load("models:digits")
    again = ask(home, "run-1")
    assert (again.version, again.changed) == ("1", False)
    assert len(Ledger.of(home.root, "digits").entries()) == 2
    assert len(MlflowClient(home.mlflow_uri).search_model_versions("name = 'digits'")) == 1


def test_own_server_and_own_store_are_one_registry(
    home: Home, run, no_replay: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers of `gauntlet up` record on the home's server, terminals in its store; tomorrow it has another port."""
    port = Port.take()
    process = start_mlflow(home, port)
    try:
        run("run-1", uri=port.address)
        assert ask(home, "run-1").version == "1"
        monkeypatch.setenv(URI_VARIABLE, port.address)
        run("run-2", products=2)
        assert ask(home, "run-2").version == "2"
        bundle = make_bundle(home.root / "brought", run_id="brought", products=3)
        assert ask(home, str(bundle.folder)).version == "3"
    finally:
        stop(process)
    monkeypatch.delenv(URI_VARIABLE)
    assert {entry.registry for entry in Ledger.of(home.root, "digits").entries()} == {""}
    rollback(home, "digits", why="slow")
    assert aliases(home)["champion"] == "2"


def test_bundle_of_another_run_in_its_place_in_the_store_is_not_promoted(home: Home, run) -> None:
    run("run-1"), run("run-2", products=2)
    mine, other = (find_origin(home, name).path for name in ("run-1", "run-2"))
    shutil.copyfile(other, mine)
    with pytest.raises(ConfigError, match="run-1: its bundle in the store was removed or changed"):
        ask(home, "run-1")


def test_challenger_becomes_champion_and_is_rolled_back(home: Home, run, no_replay: list[str]) -> None:
    run("run-1"), run("run-2", products=2)
    ask(home, "run-1")
    ask(home, "run-2", role="challenger")
    assert (aliases(home), no_replay) == ({"champion": "1", "challenger": "2"}, [])
    done = ask(home, "models:/digits@challenger")
    assert (aliases(home), no_replay) == ({"champion": "2", "previous": "1"}, ["run-1 run-2"])
    assert done.entry.replay is not None
    back = rollback(home, "digits", "it is slow")
    assert (back.version, aliases(home)) == ("1", {"champion": "1", "previous": "2"})
    found = history(home, "digits")
    assert found.problem is None
    told = [(e.op, e.role, found.outcome(e)) for e in found.entries if e.op != "commit"]
    assert told == [
        ("promote", "champion", "done"),
        ("promote", "challenger", "done"),
        ("promote", "champion", "done"),
        ("rollback", "champion", "done"),
    ]
    evidence = found.closing(found.entries[-2])
    assert evidence.versions == found.versions()
    assert evidence.seconds is not None
    assert not rollback(home, "digits", "two people answer one alarm").changed
    assert not rollback(home, "digits", leaves="2").changed
    with pytest.raises(ConfigError, match="--from 3: the champion is version 1"):
        rollback(home, "digits", leaves="3")
    assert aliases(home) == {"champion": "1", "previous": "2"}
    rollback(home, "digits", leaves="1")
    assert aliases(home) == {"champion": "2", "previous": "1"}


def test_version_that_was_rolled_back_for_proven_harm_comes_back_only_with_a_reason(
    home: Home, run, no_replay: list[str]
) -> None:
    run("run-1"), run("run-2", products=2)
    ask(home, "run-1")
    ask(home, "run-2")
    registry = ModelRegistry(home, home.mlflow_uri, "digits")
    with transaction(home, registry) as held:
        roll_back(held, "proven harm", (Check.of("watch.accuracy_drop", 3, "<", 1),))
    with pytest.raises(GateFailed, match=r"rolled_back_for_harm: rolled back on .* proven harm"):
        rollback(home, "digits", leaves="1")
    with pytest.raises(GateFailed, match=r"rolled_back_for_harm: rolled back"):
        ask(home, "run-2")
    assert aliases(home) == {"champion": "1", "previous": "2"}
    assert ask(home, "run-2", why="the sensor was broken").version == "2"


def test_challenger_two_points_worse_is_refused_and_the_ledger_says_so(home: Home, run) -> None:
    run("run-1"), run("run-2", errors=0.02)
    ask(home, "run-1")
    with pytest.raises(GateFailed, match=r"promote.max_accuracy_drop: 0.0\d+ must be <= 0.01") as refused:
        ask(home, "run-2")
    assert "Fix: train or quantize it better" in str(refused.value)
    assert aliases(home) == {"champion": "1"}
    last = Ledger.of(home.root, "digits").entries()[-1]
    assert (last.op, [check.name for check in last.checks if check.blocks]) == ("refuse", ["promote.max_accuracy_drop"])
    assert last.replay.requests == 1000


def test_bundle_with_others_evidence_or_no_trusted_signature_is_refused(
    home: Home, run, tmp_path: Path, monkeypatch, capsys
) -> None:
    run("run-1")
    forged = make_bundle(tmp_path / "forged", errors=0.5).folder
    shutil.copy(make_bundle(tmp_path / "genuine").folder / "provenance" / "slsa.json", forged / "provenance")
    seal(forged)
    with pytest.raises(GateFailed, match=r"damaged_files.*is about another model\.onnx than the one in the bundle"):
        ask(home, str(forged), name="digits")
    monkeypatch.setenv(TRUSTED_KEYS, str(make_keys(tmp_path)[1]))
    with pytest.raises(GateFailed, match=r"damaged_files.*no signature by a key of GAUNTLET_TRUSTED_KEYS"):
        ask(home, "run-1")
    monkeypatch.delenv(TRUSTED_KEYS)
    assert main(["trust", "add", str(tmp_path / "pub.pem")]) == 0
    with pytest.raises(GateFailed, match=r"damaged_files.*no signature by a key of .*trusted-keys\.json"):
        ask(home, "run-1")
    assert main(["trust", "remove", capsys.readouterr().out.splitlines()[1][:16]]) == 0
    ask(home, "run-1")
    assert aliases(home) == {"champion": "1"}


def test_bundle_that_names_a_run_of_the_home_is_what_that_run_made(home: Home, run, tmp_path: Path) -> None:
    genuine = run("run-1")
    record = home.runs / "run-1" / "report.json"
    report = RunReport.model_validate_json(record.read_text())
    made = report.stage("package")
    made = made.replace(facts={"digest": genuine.digest})
    record.write_text(report.replace(stages=(*report.stages[:-1], made)).model_dump_json())
    with pytest.raises(ConfigError, match=r"but the run run-1 that it names made .* gauntlet promote run-1"):
        ask(home, str(make_bundle(tmp_path / "forged", errors=0.5).folder))
    kept = record.read_text()
    for source in ("run-1", str(genuine.folder)):
        record.write_text("{}")
        with pytest.raises(ConfigError, match=r"report.json: damaged, or of another release \(run_id: Field required"):
            ask(home, source)
    record.write_text(kept)
    assert ask(home, str(genuine.folder)).changed


def test_failed_run_is_refused(home: Home, run) -> None:
    run("run-1", verdict="failed", stopped_at="numerics", reason="numerics.max_rel_error", winner=None)
    with pytest.raises(GateFailed, match=r"promote.run_passed: run run-1 failed at numerics"):
        ask(home, "run-1", why="all the same")
    assert [entry.op for entry in Ledger.of(home.root, "digits").entries()] == ["refuse"]


def test_overridden_gate_needs_a_reason_which_is_kept(home: Home, run) -> None:
    run("run-1", OVERRIDDEN)
    with pytest.raises(GateFailed, match=r"overridden_gates: accuracy.max_accuracy_drop: ticket 7"):
        ask(home, "run-1")
    assert ask(home, "run-1", why="test fleet").changed
    entry = Ledger.of(home.root, "digits").entries()[1]
    assert next(c for c in entry.checks if c.name == "promote.overridden_gates").override == "test fleet"


def test_damaged_bundle_is_refused(home: Home, run) -> None:
    folder = run("run-1").folder
    (folder / "model.onnx").write_bytes((folder / "model.onnx").read_bytes()[:-1] + b"\0")
    with pytest.raises(GateFailed, match=r"promote.damaged_files: model.onnx: changed"):
        ask(home, str(folder))


def test_bundle_of_a_run_elsewhere_is_promoted_from_its_file(home: Home, run, monkeypatch, no_replay) -> None:
    bundle = run("run-1")
    (home.runs / "run-1").rename(home.root / "gone")
    done = ask(home, str(bundle.folder), name="other")
    assert (done.name, aliases(home, "other")) == ("other", {"champion": "1"})


def test_champion_that_changes_during_a_replay_is_replayed_again(home: Home, run, no_replay, monkeypatch) -> None:
    run("run-1"), run("run-2", products=2), run("run-3", products=3)
    ask(home, "run-1")
    replay = promotion.replayed

    def meanwhile(*arguments: object) -> ReplayFacts:
        monkeypatch.setattr(promotion, "replayed", replay)
        ask(home, "run-2")
        return replay(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(promotion, "replayed", meanwhile)
    ask(home, "run-3")
    assert no_replay == ["run-1 run-2", "run-1 run-3", "run-2 run-3"]
    assert aliases(home) == {"champion": "3", "previous": "2"}


def test_nothing_to_roll_back_to_is_said(home: Home, run) -> None:
    with pytest.raises(ConfigError, match="no previous champion"):
        rollback(home, "digits")
    run("run-1")
    ask(home, "run-1")
    with pytest.raises(ConfigError, match="no previous champion"):
        rollback(home, "digits")


@pytest.mark.parametrize("name", ["../up", "a b", "", "é", "x' OR '1'='1", "-x"])
def test_name_that_is_not_allowed_is_refused(home: Home, run, name: str) -> None:
    run("run-1")
    if name:
        with pytest.raises(ConfigError, match="not allowed"):
            ask(home, "run-1", name=name)
    with pytest.raises(ConfigError, match="not allowed"):
        rollback(home, name)


def test_unknown_run_is_refused_with_the_command_that_lists_runs(home: Home) -> None:
    with pytest.raises(ConfigError, match=r"nothing: neither a bundle nor a run.*a run that passed: gauntlet runs"):
        ask(home, "nothing")


def test_registry_that_is_down_changes_nothing(home: Home, run, monkeypatch) -> None:
    bundle = run("run-1", uri="http://127.0.0.1:9")
    with pytest.raises(StageError, match="did not accept the run's record"):
        ask(home, "run-1")
    (home.runs / "run-1").rename(home.root / "gone")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    with pytest.raises(StageError, match=r"model registry at http://127.0.0.1:9 did not respond"):
        ask(home, str(bundle.folder))
    assert not Ledger.of(home.root, "digits").path.exists()


def test_recorded_requests_take_the_place_of_the_test_samples(home: Home, run, tmp_path: Path) -> None:
    run("run-1"), run("run-2", errors=0.02)
    ask(home, "run-1")
    x, labels = samples(300)
    x[:, 4] = 0.5  # none of these makes it err
    np.savez(tmp_path / "recorded.npz", x=x, labels=labels)
    done = ask(home, "run-2", requests=tmp_path / "recorded.npz")
    assert (done.entry.replay.requests, done.entry.replay.source) == (300, str(tmp_path / "recorded.npz"))


def test_clean_up_waits_for_a_promotion(home: Home, run, no_replay, monkeypatch: pytest.MonkeyPatch) -> None:
    run("run-1")
    run("run-2")
    ask(home, "run-1")
    same, in_use = promotion.shadow_replay, list[bool]()

    def replay(*arguments: object) -> ReplayFacts:
        in_use.append(is_locked(home.in_use))
        return same(*arguments)

    monkeypatch.setattr(promotion, "shadow_replay", replay)
    assert ask(home, "run-2").changed
    assert (in_use, is_locked(home.in_use)) == ([True], False)
