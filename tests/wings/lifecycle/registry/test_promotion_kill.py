"""SIGKILL at every write and at random moments, in one home and in two: registry and ledger have one history."""

import multiprocessing
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from graded_bundles import samples
from mlflow import MlflowClient

from flows.record.home import Home
from flows.servers.ports import HOST
from flows.tracking.sender import Sender
from flows.tracking.server import URI_VARIABLE
from gauntlet.bundle.bundle import Bundle
from gauntlet.core.errors import PipelineError
from wings.lifecycle.library.promotion.ledger import CLOSING, Ledger, last_committed, pending
from wings.lifecycle.registry import model_registry
from wings.lifecycle.registry.bundle_cache import registry_of
from wings.lifecycle.registry.model_history import history
from wings.lifecycle.registry.model_registry import ModelRegistry
from wings.lifecycle.registry.transaction import transaction
from wings.lifecycle.registry.watch import EVIDENCE, REASON

from .conftest import QUICK, make_run
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
    with transaction(home, registry_of(home, name)) as held:
        if not held.ledger.lines():  # killed before anything was said
            assert held.state == {}
            return {}
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
    ended = list[dict[str, str]]()
    for model in ("first", "whole"):  # the first one makes the experiment of all ledgers
        count = changes_of(proxy, remote, model, recorded_run(remote, proxy, model))
    for number, moment in moments(count):
        run = recorded_run(remote, proxy, f"run-{number}-{moment}")
        kill_in(proxy, remote, run, run, (number, moment))
        ended.append(assert_agreed(remote, run))
        changes_of(proxy, remote, run, run)
        assert assert_agreed(remote, run) == {"champion": run}
    began = next(at for at, aliases in enumerate(ended) if aliases)
    assert 0 < began < len(ended) - 3  # the alias, the commit and its digest follow
    assert all(ended[began:])


def test_killed_rollback_is_finished_by_the_next_command(remote: Home, proxy: Proxy) -> None:
    for source in ("run-1", "run-2"):
        changes_of(proxy, remote, "back", recorded_run(remote, proxy, source))
    assert assert_agreed(remote, "back") == {"champion": "run-2", "previous": "run-1"}
    count = changes_of(proxy, remote, "back", None)
    champions = ["run-1"]
    for number, moment in moments(count):
        kill_in(proxy, remote, "back", None, (number, moment))
        after = assert_agreed(remote, "back")
        assert set(after.values()) == {"run-1", "run-2"}
        champions.append(after["champion"])
    changed = [before != after for before, after in pairwise(champions)]
    began = changed.index(True)
    assert 0 < began < count - 3 and all(changed[began:])  # the aliases, the commit and its digest follow


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


KILLS, KILLS_A_MODEL, RUNS = 30, 6, 3
LEASE_S = 15.0
MOST_CHANGES = {"promote": 13, "challenge": 13, "rollback": 8, "canary": 7, "stop": 7, "upgrade": 4}
"""Of the registry, by what is done; a kill is before or after one of them, or at any time."""
LONGEST_S, BROKEN = 4.0, 70


def act(root: str, uri: str, name: str, what: str, run: str) -> None:
    """Do something to a model from a home, as a process of its own; its exit code is the command's."""
    os.environ |= {"GAUNTLET_HOME": root, URI_VARIABLE: uri}
    from wings.lifecycle.library.monitoring.monitor_result import MonitorLimits
    from wings.lifecycle.registry.canary import advance, end
    from wings.lifecycle.registry.promote import PromotionRequest, promote, rollback
    from wings.lifecycle.registry.runtime_upgrade import upgrade

    model_registry.LEASE_S = LEASE_S
    home, limits = Home(Path(root)), QUICK.replace(block_ms=1, max_slowdown=50)
    try:
        if what in ("promote", "challenge"):
            role = "champion" if what == "promote" else "challenger"
            promote(home, PromotionRequest(run, role, name, limits=limits))  # type: ignore[arg-type]
        elif what == "rollback":
            registry = ModelRegistry(home, uri, name)
            rollback(home, name, "drill", registry.find(registry.state().get("champion", "")))
        elif what == "canary":
            advance(home, name, home.root / "log", MonitorLimits(), limits, per_step=1)
        elif what == "stop":
            end(home, name, "drill")
        else:
            upgrade(home, name, sys.prefix, limits, requests=home.root / "requests.npz")
    except PipelineError as error:
        raise SystemExit(error.exit_code) from error
    except Exception as error:  # with Python's own exit code, it would look like a refusal
        traceback.print_exc()
        raise SystemExit(BROKEN) from error


def started(home: Home, proxy: Proxy, name: str, what: str, run: str) -> BaseProcess:
    process = PROCESSES.Process(target=act, args=(str(home.root), proxy.uri, name, what, run))
    process.start()
    return process


def assert_one_history(homes: list[Home], proxy: Proxy, name: str) -> list[str]:
    """Let the homes finish what was interrupted; return what both say was done, as the registry has it."""
    for home in homes:
        with transaction(home, ModelRegistry(home, proxy.uri, name)) as held:
            committed = last_committed(held.ledger.entries())
            assert (pending(held.ledger.entries()), held.state) == (None, committed.after if committed else {})
    if not held.ledger.lines():
        return []
    assert [history(home, name).problem for home in homes] == [None, None]
    one, two = (Ledger.of(home.root, name) for home in homes)
    assert one.path.read_bytes() == two.path.read_bytes()
    return [entry.op for entry in one.entries()]


@pytest.mark.nightly
@pytest.mark.timeout(3000)
def test_thirty_random_kills_in_two_homes_leave_one_history(
    tmp_path: Path, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(URI_VARIABLE, proxy.uri)
    homes = [Home(tmp_path / name) for name in ("one", "two")]
    for home in homes:
        home.root.mkdir()
        for number in range(RUNS):
            run = f"{home.root.name}-{number}"
            make_run(home, run, products=1 + number, uri=proxy.uri)
            assert Sender(home, home.runs / run).send()
        x, labels = samples(1000)
        np.savez(home.root / "requests.npz", x=x, labels=labels)
    monkeypatch.setattr(model_registry, "LEASE_S", LEASE_S)
    chance, kills, ended, done = random.Random(30), 0, list[tuple[str, int | None]](), dict[str, list[str]]()
    while kills < KILLS:
        name = f"model-{kills // KILLS_A_MODEL}"
        new = not done.get(name)
        deeds = ["promote", "promote"] if new else chance.choices([*MOST_CHANGES], weights=[3, 2, 2, 2, 1, 1], k=2)
        runs = [f"{home.root.name}-{chance.randrange(RUNS)}" for home in homes]
        victim, at_any_time = chance.randrange(2), chance.random() < 0.3
        change = (chance.randint(1, MOST_CHANGES[deeds[victim]]), chance.choice(("before", "after")))
        proxy.changes, proxy.victim, proxy.kill_at = 0, None, None if at_any_time else change
        processes = [started(*given) for given in zip(homes, [proxy] * 2, [name] * 2, deeds, runs, strict=True)]
        proxy.victim = processes[victim].pid
        if at_any_time:
            time.sleep(chance.uniform(0, LONGEST_S))
            processes[victim].kill()
        for process in processes:
            process.join(240)
            assert process.exitcode is not None
        proxy.kill_at = None
        kills += processes[victim].exitcode == -signal.SIGKILL
        ended += zip(deeds, (process.exitcode for process in processes), strict=True)
        assert {code for _, code in ended} <= {0, 1, 2, 3, -signal.SIGKILL}, ended
        done[name] = assert_one_history(homes, proxy, name)
    print(sorted(ended, key=str), done)
    assert {"promote", "rollback", "canary", "upgrade"} <= {op for ops in done.values() for op in ops}
