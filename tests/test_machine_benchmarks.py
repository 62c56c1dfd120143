"""The scripts that measure many models and machines: what they count is seen when it is there."""

import subprocess
import sys
from pathlib import Path

import pytest
from killable_servers import ADDRESS
from night_simulation import Rates, simulate, stage_seconds
from object_server import CREDENTIALS
from random_kills import Machine, Sampler, losses

from flows.record.journal import Journal

RATES = Rates((100.0,), 0.1, run_commits=0, server_commits_per_second=1, store_mb_per_second=1e9)
SLEEPER = "import sys; print(flush=True); sys.stdin.read()"
PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SLEEPER!r}, 'gauntlet.runtime.worker'])"


def test_work_that_is_done_twice_and_a_command_that_failed_are_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {**CREDENTIALS, "AWS_ENDPOINT_URL": "http://127.0.0.1:1", "GAUNTLET_STORE": ADDRESS}.items():
        monkeypatch.setenv(name, value)
    pytest.importorskip("obstore")
    one = Machine("a", tmp_path, {}, exits=[[137, 0]])
    work = {"stage": "quantize", "candidate": "int8", "key": "k", "cached": False}
    for run in ("first", "second"):
        journal = Journal(one.home.runs / run / "journal.jsonl")
        journal.append("work_finished", **work)
        journal.append("work_finished", **{**work, "stage": "benchmark"})
        (one.home.runs / run / "sent.json").write_text('{"events": 2}')
    assert losses(one) == ["done 2 times: ('quantize', 'int8', 'k')"]
    one.exits.append([3])
    (one.home.runs / "second" / "sent.json").write_text('{"events": 1}')
    assert losses(one)[0] == "model 1: exit codes [3]"
    assert losses(one)[-1] == "not in MLflow: second"


@pytest.mark.parametrize("races", [1, 2])
def test_sampler_sees_the_timed_processes_of_two_races(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, races: int
) -> None:
    monkeypatch.setenv("GAUNTLET_HOME", str(tmp_path))
    started = [
        subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for _ in range(races)
    ]
    for parent in started:
        assert parent.stdout is not None
        parent.stdout.readline()  # its child is there
    sampler = Sampler(tmp_path)
    sampler.start()
    while sampler.looks < 2:
        sampler.join(0.01)
    sampler.ended.set()
    sampler.join()
    for parent in started:
        parent.communicate()
    assert sampler.overlaps == races - 1


def test_night_ends_when_the_last_model_has_gone_through_pipeline_and_races() -> None:
    night = simulate(RATES, models=4, workers=2)
    assert night.seconds == pytest.approx(210, abs=0.1)  # two runs one after the other on each worker, then the races
    assert night.busy["pipeline"] == pytest.approx(200 / 210, abs=0.01)
    assert night.bottleneck == "pipeline"


def test_server_that_is_too_slow_is_the_bottleneck() -> None:
    slow = Rates((100.0,), 0.1, run_commits=1000, server_commits_per_second=10, store_mb_per_second=1e9)
    night = simulate(slow, models=20, workers=20)
    assert night.bottleneck == "server"
    assert night.seconds == pytest.approx(100 + 20 * 100 + 80 * 10, rel=0.05)


def test_rates_come_from_the_results_of_this_project() -> None:
    seconds, share = stage_seconds()
    assert len(seconds) >= 5
    assert 0 < share < 1
