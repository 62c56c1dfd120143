"""A challenger answers 1, 10 and 100 % of the requests of a real server, and stops once harm is proven."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from graded_bundles import FIRST_FLAG, samples
from harness import until
from server_process import ServerProcess, json_request, serving

from flows.cli.main import main
from flows.record.home import Home
from gauntlet.bundle.bundle import Bundle
from gauntlet.bundle.predictor import Predictor
from gauntlet.core.errors import ConfigError, GateFailed
from gauntlet.request_log.log_format import is_in_share
from serving.request_log.writer import RequestLog, RequestLogConfig
from wings.lifecycle.library.monitoring.monitor_result import MonitorLimits
from wings.lifecycle.library.promotion.ledger import Entry, Ledger, pending, running_canary
from wings.lifecycle.registry.bundle_cache import registry_of
from wings.lifecycle.registry.canary import CanaryLook, advance, end
from wings.lifecycle.registry.model_history import history
from wings.lifecycle.registry.promote import rollback
from wings.lifecycle.registry.transaction import transaction

from .conftest import QUICK, MakeRun, aliases, ask
from .labeled_requests import log_labeled

pytestmark = pytest.mark.slow


def challenged(home: Home, run: MakeRun, errors: float) -> Bundle:
    """Leave a champion that is always right, and return a challenger that errs as often as that."""
    run("run-1", errors=-3.0, monitored=True)  # right for all flags above -3
    ask(home, "run-1")
    challenger = run("run-2", errors=errors, monitored=True, products=2)
    ask(home, "run-2", role="challenger")
    return challenger


def look(home: Home, log: Path, **options: object) -> CanaryLook:
    as_they_come = MonitorLimits(label_window_h=0)  # some requests here never get a label
    return advance(home, "digits", log, as_they_come, QUICK, **{"per_step": 40, **options})  # type: ignore[arg-type]


def steps(home: Home) -> list[float]:
    past = history(home, "digits")
    assert past.problem is None
    return [entry.share for entry in past.entries if entry.op == "canary" and entry.share is not None]


def entries(home: Home) -> list[Entry]:
    return Ledger.of(home.root, "digits").entries()


def test_good_challenger_takes_every_step_and_is_promoted(
    home: Home, run: MakeRun, tmp_path: Path, no_replay: list[str]
) -> None:
    challenger, log = challenged(home, run, 0.0), tmp_path / "log"
    assert look(home, log).entry.share == 0.01
    for number, share in enumerate((0.1, 1.0)):
        log_labeled(log, challenger, 30, seed=2 * number)
        assert look(home, log).answered == 30  # too few for the next step
        log_labeled(log, challenger, 30, seed=2 * number + 1)
        assert look(home, log).entry.share == share
    log_labeled(log, challenger, 60, seed=9)
    assert look(home, log).promotion is not None
    assert no_replay == ["run-1 run-2"]
    assert aliases(home) == {"champion": "2", "previous": "1"}
    assert (steps(home), registry_of(home, "digits").canary()) == ([0.01, 0.1, 1.0], None)
    assert history(home, "digits").problem is None


def test_harm_stops_it_and_the_version_comes_back_only_with_a_reason(
    home: Home, run: MakeRun, tmp_path: Path, no_replay: list[str]
) -> None:
    challenger, log = challenged(home, run, 0.5), tmp_path / "log"
    look(home, log)
    log_labeled(log, challenger, 120)
    found = look(home, log)
    assert (found.has_ended, steps(home)) == (True, [0.01, 0])
    assert aliases(home) == {"champion": "1", "challenger": "2"}
    assert registry_of(home, "digits").canary() is None
    assert "proven harm: the risk is proven more than 1.0% above" in found.entry.why
    assert any(check.name == "watch.accuracy_drop" and not check.passed for check in found.entry.checks)
    for again in (lambda: look(home, log), lambda: ask(home, "models:/digits@challenger")):
        with pytest.raises(GateFailed, match="rolled_back_for_harm"):
            again()
    assert main(["canary", "digits", "--log", str(log), "--why", "the labels were wrong"]) == 0
    assert steps(home) == [0.01, 0, 0.01]


def test_labels_that_are_not_judged_yet_are_told(
    home: Home, run: MakeRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    challenger, log = challenged(home, run, 0.5), tmp_path / "log"
    words = ["canary", "digits", "--log", str(log)]
    assert main(words) == 0
    x, _ = samples(1)
    writer = RequestLog(RequestLogConfig(folder=log, inputs="all"))
    unlabeled = {"x": x}, {"y": Predictor(challenger, threads=1).run({"x": x})["y"]}
    writer.add("unlabeled", challenger.digest[:12], challenger.contract.signature, *unlabeled, 0.001)
    writer.close()
    log_labeled(log, challenger, 120)
    assert main(words) == 0
    assert "no harm is proven; 120 labels not judged yet (--label-window-h)" in capsys.readouterr().out
    assert main([*words, "--label-window-h", "0"]) == 1


def test_what_is_refused_in_the_end_ends_the_canary(home: Home, run: MakeRun, tmp_path: Path) -> None:
    challenger, log = challenged(home, run, 0.03), tmp_path / "log"  # too few errors to prove by few labels
    for number in range(3):
        look(home, log)
        log_labeled(log, challenger, 45, seed=number)
    with pytest.raises(GateFailed, match="max_"):
        look(home, log)
    assert steps(home) == [0.01, 0.1, 1.0, 0]
    assert aliases(home) == {"champion": "1", "challenger": "2"}


def test_person_and_any_other_change_end_it(
    home: Home, run: MakeRun, tmp_path: Path, no_replay: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match="no canary runs"):
        end(home, "digits", "nothing")
    challenged(home, run, 0.0)
    look(home, tmp_path / "log")
    assert main(["canary", "digits", "--stop", "--why", "lunch"]) == 0
    assert "the canary has ended, the champion answers everything: lunch" in capsys.readouterr().out
    run("run-3", products=3)
    ask(home, "run-3")
    look(home, tmp_path / "log")
    rollback(home, "digits", "pager")
    assert (registry_of(home, "digits").canary(), running_canary(entries(home))) == (None, [])


def test_looks_of_one_command_do_not_start_what_another_has_ended(
    home: Home, run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    challenged(home, run, 0.0)
    meanwhile = [lambda: end(home, "digits", "lunch")]
    monkeypatch.setattr("time.sleep", lambda _: meanwhile.pop()())
    assert main(["canary", "digits", "--log", str(tmp_path / "log"), "--every", "60"]) == 2
    assert "another command has ended the canary" in capsys.readouterr().err
    assert steps(home) == [0.01, 0]


@pytest.mark.parametrize("moment", ["point", "set_canary"])
def test_killed_step_is_finished_by_the_next_command(home: Home, run: MakeRun, tmp_path: Path, moment: str) -> None:
    challenged(home, run, 0.0)
    script = f"""
import os
from pathlib import Path
from flows.record.home import Home
from wings.lifecycle.library.monitoring.monitor_result import MonitorLimits
from wings.lifecycle.library.promotion.replay_facts import ReplayLimits
from wings.lifecycle.registry.canary import advance
from wings.lifecycle.registry.model_registry import ModelRegistry
ModelRegistry.{moment} = lambda *_: os.kill(os.getpid(), 9)
advance(Home.find(), "digits", Path("log"), MonitorLimits(), ReplayLimits(), per_step=40)
"""
    killed = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(Path.cwd())}
    )
    assert killed.returncode == -signal.SIGKILL
    assert pending(entries(home)) is not None
    with transaction(home, registry_of(home, "digits")):
        pass
    assert (pending(entries(home)), steps(home)) == (None, [0.01])
    challenger = aliases(home)["challenger"]
    registry = registry_of(home, "digits")
    assert registry.canary() == (registry.digest_of(challenger), 0.01)


def test_server_gives_its_share_to_the_challenger_and_takes_it_back(home: Home, run: MakeRun, tmp_path: Path) -> None:
    challenger, log = challenged(home, run, -1.0), tmp_path / "log"  # right for its golden samples
    x, labels = samples(120, seed=3)
    x[:, FIRST_FLAG] = -2 * (np.arange(len(x)) % 2)  # and wrong for every second of these
    ids = [f"r-{i}" for i in range(20_000)]
    inside = [one for one in ids if is_in_share(one, 0.01, "canary")][: len(x)]
    outside = [one for one in ids if not is_in_share(one, 0.01, "canary")][:20]
    options = ("--request-log", log, "--log-inputs", "all")
    with serving(tmp_path, "models:/digits@champion", *options) as server:
        champion = answered_by(server, inside[0], x[:1])
        assert not challenger.digest.startswith(champion)
        assert look(home, log).entry.share == 0.01
        wait_for(server, inside[0], x[:1], challenger.digest)
        assert {answered_by(server, one, x[:1]) for one in outside} == {champion}
        versions = [answered_by(server, one, x[i : i + 1]) for i, one in enumerate(inside)]
        assert all(challenger.digest.startswith(version) for version in versions)
        entry = [{"request_id": one, "labels": [int(labels[i])]} for i, one in enumerate(inside) if i]
        assert server.post("/v2/models/digits/feedback", {"feedback": entry}).status == 202
        # the log has all of them
        found = until(lambda: now if (now := look(home, log, per_step=1000)).has_ended else None, 400)
        assert "proven harm" in found.entry.why
        wait_for(server, inside[0], x[:1], champion)
        assert {answered_by(server, one, x[:1]) for one in (*inside[:20], *outside)} == {champion}
    assert steps(home) == [0.01, 0]


def answered_by(server: ServerProcess, request_id: str, x: object) -> str:
    body = json.dumps(json_request({"x": x}))  # type: ignore[dict-item]
    response = server.post("/v2/models/digits/infer", body, x_request_id=request_id)
    assert response.status == 200, response.body
    return str(response.json()["model_version"])


def wait_for(server: ServerProcess, request_id: str, x: object, digest: str) -> None:
    """Return once a bundle answers; the server asks the registry every few seconds."""
    until(lambda: digest.startswith(answered_by(server, request_id, x)), 400)
