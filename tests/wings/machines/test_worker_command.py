"""What `gauntlet worker` refuses before it talks to a server."""

from pathlib import Path

import pytest
from harness import command

from flows.cli.main import main
from flows.servers.ports import free_port


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "prefect"))
    monkeypatch.setenv("GAUNTLET_HOME", str(tmp_path / "home"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--pool", "two words"), "--pool two words: expected letters"),
        (("--pool", "gpu", "--store", "/no/such/folder"), "--store /no/such/folder: no such folder"),
        (("--pool", "gpu"), "no Prefect server is known; name that of the runs, for example PREFECT_API_URL="),
    ],
)
def test_arguments_are_refused_in_one_line(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["worker", *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.slow
def test_server_that_does_not_respond_is_named(tmp_path: Path) -> None:
    address = f"http://127.0.0.1:{free_port()}/api"
    done = command(tmp_path, "worker", "--pool", "gpu", PREFECT_API_URL=address)
    assert done.returncode == 3
    assert f"gauntlet: Prefect server {address}: " in done.stderr
    assert "Traceback" not in done.stderr
