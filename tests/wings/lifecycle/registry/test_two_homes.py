"""Thirty random kills in two homes with one registry: it has one history, and its aliases are where that says."""

import os
import random
import signal
import sys
import time
import traceback
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np
import pytest
from graded_bundles import samples

from flows.record.home import Home
from flows.tracking.sender import Sender
from flows.tracking.server import URI_VARIABLE
from gauntlet.core.errors import GateFailed, PipelineError
from wings.lifecycle.library.promotion.ledger import Ledger, digest_of, last_committed, pending
from wings.lifecycle.registry.model_history import history
from wings.lifecycle.registry.model_registry import ModelRegistry
from wings.lifecycle.registry.transaction import transaction

from .conftest import QUICK, make_run
from .killing_proxy import PROCESSES, Proxy

KILLS, KILLS_A_MODEL, RUNS = 30, 6, 3
MOST_CHANGES = {"promote": 9, "challenge": 9, "rollback": 3, "canary": 2, "stop": 2, "upgrade": 1}
"""Of the registry, by what is done; a kill is before or after one of them, or at any time."""
LONGEST_S, BROKEN = 4.0, 70


def act(root: str, uri: str, name: str, what: str, run: str) -> None:
    """Do something to a model from a home, as a process of its own; its exit code is the command's."""
    os.environ |= {"GAUNTLET_HOME": root, URI_VARIABLE: uri}
    from wings.lifecycle.library.monitoring.monitor_result import MonitorLimits
    from wings.lifecycle.registry.canary import advance, end
    from wings.lifecycle.registry.promote import PromotionRequest, promote, rollback
    from wings.lifecycle.registry.runtime_upgrade import upgrade

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


def assert_one_history(homes: list[Home], proxy: Proxy, name: str) -> None:
    """Let both homes finish what was interrupted; one of them has the registry's history, the other has none."""
    owners = []
    for home in homes:
        registry, ledger = ModelRegistry(home, proxy.uri, name), Ledger.of(home.root, name)
        try:
            with transaction(home, registry):
                pass
        except GateFailed as error:
            assert "the model was promoted from another home" in str(error)
        assert pending(ledger.entries()) is None
        committed, head = last_committed(ledger.entries()), registry.head()
        if head in [digest_of(line) for line in ledger.lines()]:
            owners.append(home)
            assert registry.state() == (committed.after if committed else {})
            assert history(home, name).problem is None
        else:
            assert committed is None
    assert len(owners) == 1


@pytest.mark.nightly
@pytest.mark.timeout(3000)
def test_thirty_random_kills_in_two_homes_leave_one_history(
    tmp_path: Path, empty_store: Path, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
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
    chance, kills, ended = random.Random(30), 0, list[tuple[str, int | None]]()
    while kills < KILLS:
        name = f"model-{kills // KILLS_A_MODEL}"
        new = all(not Ledger.of(home.root, name).lines() for home in homes)
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
        if not (new and all(not Ledger.of(home.root, name).lines() for home in homes)):
            assert_one_history(homes, proxy, name)
    print(sorted(ended, key=str))
