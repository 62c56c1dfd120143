"""MLflow's server of `gauntlet up` is for the home's account alone."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from harness import prefect_account
from mlflow import MlflowClient

from flows.record.home import Home
from flows.servers.local_servers import runs_mlflow, start_mlflow, stop
from flows.servers.password import CLIENT, SERVER, mlflow_variables
from flows.servers.ports import Port
from flows.tracking.server import with_password

pytestmark = pytest.mark.slow
CREATE = "api/2.0/mlflow/experiments/create"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Home, str]]:
    home, port = Home(tmp_path_factory.mktemp("home")), Port.take()
    with pytest.MonkeyPatch.context() as patch:
        for name in (CLIENT, SERVER):
            patch.delenv(name, raising=False)
        process = start_mlflow(home, port, asks=True)
        yield home, port.address
        stop(process)
        assert not runs_mlflow(home, port.address)  # whoever has the port now is not told the password


@pytest.mark.parametrize("account", [None, ("gauntlet", "wrong"), ("gauntlet", "")])
@pytest.mark.parametrize("path", ["", CREATE, "ajax-api/2.0/mlflow/runs/search", "get-artifact?path=a&run_uuid=b"])
def test_nobody_reads_or_writes_without_the_password(
    server: tuple[Home, str], path: str, account: tuple[str, str] | None
) -> None:
    answer = requests.post(f"{server[1]}/{path}", json={"name": "x"}, auth=account, timeout=60)
    assert (answer.status_code, "Basic" in answer.headers["WWW-Authenticate"]) == (401, True)


@pytest.mark.parametrize("header", [{"Origin": "http://127.0.0.1:1"}, {"Origin": "null"}, {"Host": "evil.example"}])
def test_pages_of_other_origins_and_names_are_refused_with_the_password(
    server: tuple[Home, str], header: dict[str, str]
) -> None:
    planted = {"json": {"name": "planted"}, "auth": prefect_account(server[0]), "timeout": 60}
    assert requests.post(f"{server[1]}/{CREATE}", headers=header, **planted).status_code in (400, 403)


def test_commands_of_the_home_find_the_password_and_those_of_another_do_not(
    server: tuple[Home, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in mlflow_variables(*server):
        monkeypatch.setenv(name, "")
    assert MlflowClient(with_password(Home(tmp_path), server[1])) and not os.environ["MLFLOW_TRACKING_PASSWORD"]
    client = MlflowClient(with_password(*server))
    assert client.get_experiment(client.create_experiment("ours")).name == "ours"
