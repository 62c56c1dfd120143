"""MLflow has one address for the whole process; threads that use several do not disturb each other."""

import os
import time
from concurrent.futures import ThreadPoolExecutor

import mlflow
import pytest

from flows.tracking.server import URI_VARIABLE, tracking_uri


@pytest.mark.parametrize("users", [None, "http://users"])
def test_threads_use_the_server_that_each_has_named(users: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(URI_VARIABLE, raising=False)
    if users:
        monkeypatch.setenv(URI_VARIABLE, users)
    found: list[tuple[str, str, str | None]] = []

    def use(uri: str) -> None:
        for _ in range(50):
            with tracking_uri(uri):
                time.sleep(0.001)  # another thread's turn
                found.append((uri, mlflow.get_tracking_uri(), os.environ.get(URI_VARIABLE)))

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(use, ("file:a", "file:b")))
    assert {(uri, at) for uri, at, _ in found} == {("file:a", "file:a"), ("file:b", "file:b")}
    assert os.environ.get(URI_VARIABLE) == users
    assert {variable for *_, variable in found} == {users}
