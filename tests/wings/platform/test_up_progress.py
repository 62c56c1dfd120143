"""`gauntlet up` names each part when it is ready, because all of them together take a minute."""

import argparse
import io
import sys
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from flows.record.home import Home
from flows.record.locks import locked
from gauntlet.core.errors import StageError
from wings.platform.supervisor import PartState, PlatformState, state_file, supervisor_lock
from wings.platform.up_command import _wait_until_ready, show_status


def test_each_part_is_named_when_it_is_ready(tmp_path: Path) -> None:
    home, shown = Home(tmp_path), io.StringIO()
    parts = tuple(PartState(name=name, ready=True) for name in ("prefect", "mlflow"))
    state_file(home).parent.mkdir(parents=True)
    state_file(home).write_text(PlatformState(supervisor=PartState(name="supervisor"), parts=parts).model_dump_json())
    assert _wait_until_ready(home, None, Console(file=shown)).parts == parts
    assert shown.getvalue() == "  prefect is ready\n  mlflow is ready\n"


def test_status_names_the_logs_of_what_has_ended(tmp_path: Path, monkeypatch, capsys) -> None:
    home, stopped = Home(tmp_path), psutil.Popen([sys.executable, "-c", ""])
    monkeypatch.setenv("GAUNTLET_HOME", str(tmp_path))
    parts = (PartState(name="mlflow", pid=stopped.pid, ready=True), PartState(name="worker", error="ended"))
    stopped.wait()
    state_file(home).parent.mkdir(parents=True)
    state_file(home).write_text(PlatformState(supervisor=parts[0], parts=parts).model_dump_json())
    assert show_status(argparse.Namespace(json=False)) == 1
    printed = capsys.readouterr().out
    assert f"mlflow: see {tmp_path}/mlflow-server.log\nworker: see {tmp_path}/platform/worker.log\n" in printed


def test_of_two_at_once_the_second_waits_for_what_the_first_starts(tmp_path: Path) -> None:
    home, ended = Home(tmp_path), psutil.Popen([sys.executable, "-c", ""])
    ended.wait()
    me = PartState(name="supervisor")
    with locked(supervisor_lock(home)), ThreadPoolExecutor() as pool:
        waiting = pool.submit(_wait_until_ready, home, ended, Console(file=io.StringIO()))
        assert wait([waiting], timeout=1).not_done
        state_file(home).write_text(PlatformState(supervisor=me, parts=(me.replace(ready=True),)).model_dump_json())
        assert waiting.result(timeout=300).is_ready
    with pytest.raises(StageError, match="the supervisor has ended"):
        state_file(home).unlink()
        _wait_until_ready(home, ended, Console(file=io.StringIO()))
