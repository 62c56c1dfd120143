"""Most of these tests skip the child processes; tests of the sandbox and of the command line have them."""

from collections.abc import Callable

import pytest

from gauntlet.diagnosis.faults import slow_first_call
from gauntlet.runtime.subprocess_runner import SubprocessResult


@pytest.fixture(autouse=True)
def in_this_process(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Call instead of starting a child; half a second less each time. A test that wants children asks for `apart`."""
    if "apart" in request.fixturenames:
        return

    def call(function: Callable[..., object], *args: object, **_limits: float) -> SubprocessResult[object]:
        return SubprocessResult(function(*args), 0)

    monkeypatch.setattr("gauntlet.diagnosis.run_in_subprocess", call)


@pytest.fixture
def apart() -> None:
    """Start children after all."""


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Less than a second is slow, so that a slow model can be a small one."""
    monkeypatch.setattr(slow_first_call, "SLOW_MS", 100)
