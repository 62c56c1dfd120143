"""Who may promote is decided by MLflow's own accounts, on its real server as docker/compose.yaml starts it."""

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import psutil
import pytest
import yaml
from free_ports import free_port
from harness import command
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from flows.record.home import Home
from flows.servers.local_servers import launch, stop, wait_until_up
from wings.lifecycle.library.promotion.ledger import Ledger, digest_of
from wings.lifecycle.registry.bundle_cache import registry_of, resolve
from wings.lifecycle.registry.model_registry import LINES, AccessError
from wings.lifecycle.registry.promote import PromotionRequest, promote, rollback

from .conftest import QUICK

pytestmark = [pytest.mark.nightly, pytest.mark.xdist_group("access")]
DOCKER = Path(__file__).parents[4] / "docker"
SERVICES = yaml.safe_load((DOCKER / "compose.yaml").read_text())["services"]
ADMIN = SERVICES["worker"]["environment"]["MLFLOW_TRACKING_USERNAME"]
PASSWORD = "correct horse battery"
MODEL = "digits"
ROLES = {"reader": "read", "trainer": "train", "releaser": "release"}


def sign_in(monkeypatch: pytest.MonkeyPatch, account: str | None, password: str = PASSWORD) -> None:
    for name, value in {"MLFLOW_TRACKING_USERNAME": account, "MLFLOW_TRACKING_PASSWORD": account and password}.items():
        monkeypatch.setenv(name, value) if value else monkeypatch.delenv(name, raising=False)


@pytest.fixture
def server(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Start MLflow with Compose's command and accounts, on this home's store; leave the administrator signed in."""
    folder, port = tmp_path / "server", free_port()
    folder.mkdir()
    accounts = (DOCKER / "mlflow-accounts.ini").read_text()
    (folder / "accounts.ini").write_text(accounts.replace("sqlite:////mlflow/", f"sqlite:///{folder}/"))
    environment = os.environ | {
        **{name: PASSWORD if "$" in value else value for name, value in SERVICES["mlflow"]["environment"].items()},
        "MLFLOW_BACKEND_STORE_URI": home.mlflow_uri,
        "MLFLOW_AUTH_CONFIG_PATH": str(folder / "accounts.ini"),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
    }
    ours = {"--host": "127.0.0.1", "--port": str(port), "--artifacts-destination": (folder / "files").as_uri()}
    ours |= {"--allowed-hosts": f"127.0.0.1:{port}", "--cors-allowed-origins": f"http://127.0.0.1:{port}"}
    options = [option.partition("=")[::2] for option in SERVICES["mlflow"]["command"][2:]]
    arguments = [f"{name}={ours.get(name, value)}" if value else name for name, value in options]
    uri = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "mlflow", "server", *arguments]
    process: psutil.Popen = launch(command, environment, folder / "server.log")
    wait_until_up(process, f"{uri}/health", "MLflow server", folder / "server.log")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    sign_in(monkeypatch, ADMIN)
    yield uri
    stop(process)


def add_account(account: str, role: str) -> subprocess.CompletedProcess[str]:
    script = [sys.executable, DOCKER / "accounts.py", account, role]
    return subprocess.run(script, env=os.environ | {"ACCOUNT_PASSWORD": PASSWORD}, capture_output=True, text=True)


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
    run("run-1", uri=server)
    promote(home, PromotionRequest("run-1", limits=QUICK))
    run("run-2", uri=server, errors=0.001)

    sign_in(monkeypatch, "trainer")
    refused = command(tmp_path, "promote", "run-2", "--as", "challenger", GAUNTLET_HOME=str(home.root))
    assert refused.returncode == 2, refused.stderr
    assert "does not allow the account trainer to do this with the model digits" in refused.stderr
    assert not any(word in refused.stderr + refused.stdout for word in ("Traceback", PASSWORD))
    assert [op for op, _ in ledger(home)] == ["promote", "commit"]
    client, registry = MlflowClient(server), registry_of(home, MODEL)
    forged = Ledger.of(home.root, MODEL).next_line("rollback", by="releaser", digest="0" * 64)[1]
    client.log_text(client.get_registered_model(MODEL).tags[LINES], forged.decode(), f"{digest_of(forged)}.json")
    with pytest.raises(AccessError):
        registry.add_line(forged)

    sign_in(monkeypatch, "releaser")
    assert promote(home, PromotionRequest("run-2", limits=QUICK)).changed
    assert ledger(home)[-2:] == [("promote", "releaser"), ("commit", "releaser")]
    for account, password in (("reader", PASSWORD), ("reader", "wrong"), (None, "")):
        sign_in(monkeypatch, account, password)
        with pytest.raises(AccessError, match="the account reader" if account else "requests without an account"):
            rollback(home, MODEL)
    sign_in(monkeypatch, "releaser")
    assert rollback(home, MODEL).changed
    assert ledger(home)[-2:] == [("rollback", "releaser"), ("commit", "releaser")]


def test_record_arrives_with_the_password_and_nobody_reads_or_writes_without(
    home: Home, run, server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("run-1", uri=server)
    sent = command(tmp_path, "sync", GAUNTLET_HOME=str(home.root))
    assert (sent.returncode, sent.stderr) == (0, "")
    [recorded] = MlflowClient(server).search_runs([MlflowClient(server).get_experiment_by_name(MODEL).experiment_id])
    assert recorded.info.status == "FINISHED"
    assert promote(home, PromotionRequest("run-1")).version == "1"
    for path, body in (("registered-models/get?name=digits", None), ("experiments/create", b'{"name": "planted"}')):
        asked = urllib.request.Request(f"{server}/api/2.0/mlflow/{path}", body, {"Content-Type": "application/json"})
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(asked, timeout=30)

    *_, account, role = SERVICES["deploy"]["command"][-1].split()
    assert account == SERVICES["serving"]["environment"]["MLFLOW_TRACKING_USERNAME"]
    assert add_account(account, role).returncode == 0
    sign_in(monkeypatch, account)
    assert resolve(home, "models:/digits@champion").version == "1"
    client = MlflowClient(server)
    tag = partial(client.set_registered_model_tag, MODEL, "planted")
    for write in (tag, client.create_experiment, client.create_registered_model):
        with pytest.raises(MlflowException, match="Permission denied"):
            write("planted")
