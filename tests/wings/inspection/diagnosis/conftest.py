"""Most of these tests skip the child processes; tests of the sandbox and of the command line have them."""

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from gauntlet.runtime.subprocess_runner import SubprocessResult
from wings.inspection.library.diagnosis import diagnose, fix
from wings.inspection.library.diagnosis.faults import slow_first_call
from wings.inspection.library.diagnosis.findings import CallerHints, Diagnosis, FixResult

Mend = Callable[..., tuple[FixResult, Diagnosis | None]]


@pytest.fixture(autouse=True)
def in_this_process(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Call instead of starting a child; half a second less each time. A test that wants children asks for `apart`."""
    if "apart" not in request.fixturenames:
        start = "wings.inspection.library.diagnosis.run_in_subprocess"
        monkeypatch.setattr(start, lambda function, *args, **_limits: SubprocessResult(function(*args), 0))


@pytest.fixture
def apart() -> None:
    """Start children after all."""


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Less than a second is slow, so that a slow model can be a small one."""
    monkeypatch.setattr(slow_first_call, "SLOW_MS", 100)


@pytest.fixture
def mend(tmp_path: Path) -> Mend:
    """Returns a function that diagnoses, fixes to `fixed.onnx`, and diagnoses that."""

    def run(proto: onnx.ModelProto, **given: object) -> tuple[FixResult, Diagnosis | None]:
        path, target = tmp_path / "model.onnx", tmp_path / "fixed.onnx"
        onnx.save(proto, path)
        evidence = CallerHints.model_validate(given)
        mending = fix(path, target, evidence, diagnose(path, evidence, 60.0))
        assert onnx.load(path) == proto  # the original stays as it was
        return mending, diagnose(target, evidence.replace(constants=None), 60.0) if mending.output else None

    return run
