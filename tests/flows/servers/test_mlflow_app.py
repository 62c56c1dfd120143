"""MLflow's server of `gauntlet up` is for the home's account alone."""

from collections.abc import Iterator

import pytest
import requests
from mlflow import MlflowClient

from flows.record.home import Home
from flows.servers.local_servers import start_mlflow, stop
from flows.servers.password import CLIENT, MLFLOW_NAME, MLFLOW_PASSWORD, mlflow_variables, password_file
from flows.servers.ports import Port

CREATE = "api/2.0/mlflow/experiments/create"


@pytest.fixture(scope="module")
def variables(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    home, port = Home(tmp_path_factory.mktemp("home")), Port.take()
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(CLIENT, raising=False)
        known = mlflow_variables(home, port.address)
    assert password_file(home).read_text().strip() == f"{known[MLFLOW_NAME]}:{known[MLFLOW_PASSWORD]}"
    server = start_mlflow(home, port, known)
    yield known
    stop(server)


@pytest.mark.parametrize("account", [None, ("gauntlet", "wrong"), ("gauntlet", "")])
@pytest.mark.parametrize("path", ["", CREATE, "ajax-api/2.0/mlflow/runs/search", "get-artifact?path=a&run_uuid=b"])
def test_nobody_reads_or_writes_without_the_password(
    variables: dict[str, str], path: str, account: tuple[str, str] | None
) -> None:
    answer = requests.post(f"{variables['MLFLOW_TRACKING_URI']}/{path}", json={"name": "x"}, auth=account, timeout=60)
    assert (answer.status_code, "Basic" in answer.headers["WWW-Authenticate"]) == (401, True)


@pytest.mark.parametrize("header", [{"Origin": "http://127.0.0.1:1"}, {"Origin": "null"}, {"Host": "evil.example"}])
def test_pages_of_other_origins_and_names_are_refused_with_the_password(
    variables: dict[str, str], header: dict[str, str]
) -> None:
    address, account = variables["MLFLOW_TRACKING_URI"], (variables[MLFLOW_NAME], variables[MLFLOW_PASSWORD])
    planted = {"json": {"name": "planted"}, "auth": account, "timeout": 60}
    assert requests.post(f"{address}/{CREATE}", headers=header, **planted).status_code in (400, 403)


def test_clients_with_the_variables_of_the_home_use_it(
    variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    client = MlflowClient(variables["MLFLOW_TRACKING_URI"])
    assert client.get_experiment(client.create_experiment("ours")).name == "ours"
