"""A real object server, and the addresses of stores of each kind."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from azure_server import CONTAINER, azure_server
from free_ports import free_port
from object_server import BUCKET, ObjectServer, object_server

from wings.machines.library.object_store_client import connect


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectServer]:
    with object_server(tmp_path_factory.mktemp("objects")) as server:
        yield server


@pytest.fixture
def server(shared_server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectServer]:
    yield from reached(shared_server, monkeypatch)


@pytest.fixture
def own_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectServer]:
    with object_server(tmp_path) as own:
        yield from reached(own, monkeypatch)


@pytest.fixture
def no_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectServer]:
    """The settings of a server that does not run."""
    yield from reached(ObjectServer(free_port(), tmp_path), monkeypatch)


def reached(server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectServer]:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    connect.cache_clear()
    yield server
    connect.cache_clear()


@pytest.fixture(scope="session")
def azure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with azure_server(tmp_path_factory.mktemp("azure")) as environment:
        yield environment


@pytest.fixture
def azure_client(azure: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, value in azure.items():
        monkeypatch.setenv(name, value)
    connect.cache_clear()
    yield
    connect.cache_clear()


@pytest.fixture(params=["s3", pytest.param("az", marks=pytest.mark.nightly), "file", "memory"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "s3":
        request.getfixturevalue("server")
        return f"s3://{BUCKET}/{tmp_path.name}"
    if request.param == "az":
        request.getfixturevalue("azure_client")
        return f"az://{CONTAINER}/{tmp_path.name}"
    connect.cache_clear()
    return f"file://{tmp_path / 'mounted'}" if request.param == "file" else f"memory://{tmp_path.name}"
