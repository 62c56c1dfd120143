"""SIGKILL at every write of promote and rollback, and two at once: registry and ledger agree afterwards.

`killing_proxy` kills the command before or after one of its changes.
"""

import multiprocessing
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from flows.record.home import Home
from flows.servers.ports import HOST
from flows.tracking.sender import Sender
from gauntlet.bundle.bundle import Bundle
from wings.lifecycle.library.promotion.ledger import CLOSING, Ledger, last_committed, pending
from wings.lifecycle.registry.bundle_cache import registry_of
from wings.lifecycle.registry.model_history import history
from wings.lifecycle.registry.transaction import transaction
from wings.lifecycle.registry.watch import EVIDENCE, REASON

from .conftest import make_run
from .killing_proxy import PROCESSES, Proxy
from .labeled_requests import log_labeled

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]


def work(root: str, name: str, source: str | None) -> None:
    """Promote a run, roll back, or watch with the log at a path, as a process of its own."""
    os.environ["GAUNTLET_HOME"] = root
    from gauntlet.core.errors import PipelineError
    from wings.lifecycle.library.monitoring.monitor_result import MonitorLimits
    from wings.lifecycle.library.promotion.replay_facts import ReplayLimits
    from wings.lifecycle.registry.promote import PromotionRequest, promote, rollback
    from wings.lifecycle.registry.watch import watch

    try:
        if source is None:
            registry = registry_of(Home(Path(root)), name)
            rollback(Home(Path(root)), name, leaves=registry.find(registry.state()["champion"]))
        elif source.startswith("/"):
            watch(Home(Path(root)), name, Path(source), MonitorLimits(max_accuracy_drop=0.01))
        else:
            limits = ReplayLimits(rounds=6, block_ms=2, max_slowdown=50, max_accuracy_drop=1, max_class_drop=1)
            promote(Home(Path(root)), PromotionRequest(source, name=name, limits=limits))
    except PipelineError as error:
        raise SystemExit(error.exit_code) from error


@contextmanager
def running(root: Path, name: str, source: str | None) -> Iterator[multiprocessing.process.BaseProcess]:
    process = PROCESSES.Process(target=work, args=(str(root), name, source))
    process.start()
    try:
        yield process
    finally:
        process.join(120)
        if process.is_alive():
            process.kill()


def assert_agreed(home: Home, name: str) -> dict[str, str]:
    """What the next command on the model leaves; return the aliases, by the run that each bundle is of."""
    with transaction(home, registry_of(home, name)):
        pass
    found = history(home, name)
    assert (found.problem, found.note) == (None, None)
    entries = Ledger.of(home.root, name).entries()
    assert pending(entries) is None
    committed = last_committed(entries)
    expected = dict(committed.after) if committed else {}
    assert {**found.aliases} == expected
    client = MlflowClient(f"http://{HOST}:{os.environ['MLFLOW_PROXY_PORT']}")
    versions = client.search_model_versions(f"name = '{name}'")
    digests = [version.tags["bundle.digest"] for version in versions]
    assert len(digests) == len(set(digests))
    runs = {str(e.digest): str(e.run_id) for e in entries if e.op not in CLOSING}
    return {alias: runs[digest] for alias, digest in expected.items()}


@pytest.fixture
def remote(home: Home, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> Home:
    """A home whose runs are recorded on the server."""
    monkeypatch.setenv("MLFLOW_PROXY_PORT", str(proxy.server_port))
    proxy.kill_at = None
    return home


def recorded_run(home: Home, proxy: Proxy, run_id: str, **options: Any) -> str:
    """Make a run that MLflow knows, with a bundle that its registry does not know."""
    make_run(home, run_id, uri=proxy.uri, **options)
    assert Sender(home, home.runs / run_id).send()
    return run_id


def changes_of(proxy: Proxy, home: Home, name: str, source: str | None) -> int:
    """Let a command finish and return how many changes it made."""
    proxy.changes, proxy.kill_at = 0, None
    with running(home.root, name, source) as process:
        pass
    assert process.exitcode == 0
    return proxy.changes


def kill_in(proxy: Proxy, home: Home, name: str, source: str | None, at: tuple[int, str]) -> None:
    proxy.changes, proxy.kill_at = 0, at
    with running(home.root, name, source) as process:
        proxy.victim = process.pid
    assert process.exitcode == -signal.SIGKILL, f"not killed at change {at}"
    proxy.kill_at = None


def moments(count: int) -> list[tuple[int, str]]:
    """Return where to kill: before each change, which is after the one before it, and after the last."""
    return [*((number, "before") for number in range(1, count + 1)), (count, "after")]


def test_killed_promotion_is_finished_by_the_next_command(remote: Home, proxy: Proxy) -> None:
    count = changes_of(proxy, remote, "whole", recorded_run(remote, proxy, "whole"))
    assert count >= 6  # the registered model, the logged one and its end, the version, alias, head
    for number, moment in moments(count):
        run = recorded_run(remote, proxy, f"run-{number}-{moment}")
        kill_in(proxy, remote, run, run, (number, moment))
        assert [e.op for e in Ledger.of(remote.root, run).entries()] == ["promote"]
        assert assert_agreed(remote, run) == {"champion": run}


def test_killed_rollback_is_finished_by_the_next_command(remote: Home, proxy: Proxy) -> None:
    for source in ("run-1", "run-2"):
        changes_of(proxy, remote, "back", recorded_run(remote, proxy, source))
    assert assert_agreed(remote, "back") == {"champion": "run-2", "previous": "run-1"}
    count = changes_of(proxy, remote, "back", None)
    assert count == 3  # two aliases, the head
    champion = "run-1"
    for number, moment in moments(count):
        kill_in(proxy, remote, "back", None, (number, moment))
        champion, previous = ("run-2", "run-1") if champion == "run-1" else ("run-1", "run-2")
        assert assert_agreed(remote, "back") == {"champion": champion, "previous": previous}


def test_killed_watch_is_finished_by_the_next_looks(remote: Home, proxy: Proxy, tmp_path: Path) -> None:
    """The first look is killed after its first change, the second one after its second ..., until none is left."""
    for source, errors in (("good", 0.0), ("bad", 0.5)):
        recorded_run(remote, proxy, source, errors=errors, monitored=True)
        changes_of(proxy, remote, "watched", source)
    log_labeled(tmp_path / "log", Bundle.open(remote.root / "made" / "bad"), 80)
    for looks in range(1, 20):
        proxy.changes, proxy.kill_at = 0, (looks, "after")
        with running(remote.root, "watched", str(tmp_path / "log")) as process:
            proxy.victim = process.pid
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL
    proxy.kill_at = None
    assert looks > 3  # in the aliases, behind the head, and in the evidence
    assert assert_agreed(remote, "watched") == {"champion": "good", "previous": "bad"}
    assert [e.op for e in Ledger.of(remote.root, "watched").entries()][4:] == ["rollback", "commit"]
    assert changes_of(proxy, remote, "watched", str(tmp_path / "log")) == 0
    client = MlflowClient(proxy.uri)
    version = client.get_model_version("watched", client.get_registered_model("watched").aliases["previous"])
    assert "proven harm" in version.tags[REASON]
    assert len(client.list_artifacts(version.run_id, EVIDENCE)) == 2


def test_two_promotions_at_once_both_count_and_the_second_one_replaced_the_first(remote: Home, proxy: Proxy) -> None:
    for source in ("run-1", "run-2"):
        recorded_run(remote, proxy, source)
    with running(remote.root, "both", "run-1") as one, running(remote.root, "both", "run-2") as two:
        pass
    assert (one.exitcode, two.exitcode) == (0, 0)
    assert set(assert_agreed(remote, "both").values()) == {"run-1", "run-2"}
    entries = Ledger.of(remote.root, "both").entries()
    assert [entry.op for entry in entries] == ["promote", "commit", "promote", "commit"]
    assert entries[2].replaced == entries[0].digest
    assert entries[2].replay is not None
