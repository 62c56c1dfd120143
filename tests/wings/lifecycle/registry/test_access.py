"""Who may promote is decided by MLflow's own accounts, on its real server with the app `basic-auth`."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from harness import command

from flows.record.home import Home
from flows.servers.local_servers import launch, stop, wait_until_up
from flows.servers.ports import free_port
from wings.lifecycle.library.promotion.ledger import Ledger
from wings.lifecycle.library.promotion.replay_facts import ReplayLimits
from wings.lifecycle.registry.model_registry import AccessError
from wings.lifecycle.registry.promote import PromotionRequest, promote, rollback

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("access")]
ADMIN, PASSWORD = "platform", "correct horse battery"
MODEL = "digits"
ROLES = {"reader": "read", "trainer": "train", "releaser": "release"}
CONFIG = """
[mlflow]
default_permission = READ
database_uri = sqlite:///{folder}/accounts.db
admin_username = {admin}
auth_cache_ttl_seconds = 600
authorization_function = mlflow.server.auth:authenticate_request_basic_auth
"""


def sign_in(monkeypatch: pytest.MonkeyPatch, account: str | None, password: str = PASSWORD) -> None:
    for name, value in {"MLFLOW_TRACKING_USERNAME": account, "MLFLOW_TRACKING_PASSWORD": account and password}.items():
        monkeypatch.setenv(name, value) if value else monkeypatch.delenv(name, raising=False)


@pytest.fixture
def server(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Start MLflow with accounts, on this home's store, and leave the administrator signed in."""
    folder = tmp_path / "server"
    folder.mkdir()
    (folder / "accounts.ini").write_text(CONFIG.format(folder=folder, admin=ADMIN))
    environment = os.environ | {
        "MLFLOW_AUTH_CONFIG_PATH": str(folder / "accounts.ini"),
        "MLFLOW_AUTH_ADMIN_PASSWORD": PASSWORD,
        "MLFLOW_FLASK_SERVER_SECRET_KEY": "only for this test",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
    }
    port = free_port()
    uri = f"http://127.0.0.1:{port}"
    arguments = [sys.executable, "-m", "mlflow", "server", "--app-name", "basic-auth", "--workers", "1"]
    arguments += ["--host", "127.0.0.1", "--port", str(port)]
    arguments += ["--backend-store-uri", home.mlflow_uri, "--artifacts-destination", (folder / "files").as_uri()]
    process: psutil.Popen = launch(arguments, environment, folder / "server.log")
    wait_until_up(process, f"{uri}/health", "MLflow server", folder / "server.log")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    sign_in(monkeypatch, ADMIN)
    yield uri
    stop(process)


def add_account(account: str, role: str) -> subprocess.CompletedProcess[str]:
    script = Path(__file__).parents[4] / "docker" / "accounts.py"
    environment = os.environ | {"ACCOUNT_PASSWORD": PASSWORD}
    return subprocess.run([sys.executable, script, account, role], env=environment, capture_output=True, text=True)


def ledger(home: Home) -> list[tuple[str, str]]:
    lines = map(json.loads, Ledger.of(home.root, MODEL).path.read_text().splitlines())
    return [(line["op"], line["by"].partition(" ")[0]) for line in lines]


def test_only_an_account_with_permission_promotes_and_rolls_back(
    home: Home, run, server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for account, role in ROLES.items():
        done = add_account(account, role)
        assert done.returncode == 0, done.stderr
        assert PASSWORD not in done.stdout + done.stderr
    limits = ReplayLimits(rounds=6, block_ms=5, max_slowdown=20)
    run("run-1", uri=server)
    promote(home, PromotionRequest("run-1", limits=limits))
    run("run-2", uri=server, errors=0.001)

    sign_in(monkeypatch, "trainer")
    refused = command(tmp_path, "promote", "run-2", "--as", "challenger", GAUNTLET_HOME=str(home.root))
    assert refused.returncode == 2, refused.stderr
    assert "does not allow the account trainer to do this with the model digits" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert PASSWORD not in refused.stderr + refused.stdout
    assert ledger(home)[-2:] == [("promote", "trainer"), ("undo", "trainer")]

    sign_in(monkeypatch, "releaser")
    assert promote(home, PromotionRequest("run-2", limits=limits)).changed
    for account, password in (("reader", PASSWORD), ("reader", "wrong"), (None, "")):
        sign_in(monkeypatch, account, password)
        with pytest.raises(AccessError, match="the account reader" if account else "requests without an account"):
            rollback(home, MODEL)
    sign_in(monkeypatch, "releaser")
    assert rollback(home, MODEL).changed
    assert ledger(home)[-2:] == [("rollback", "releaser"), ("commit", "releaser")]
