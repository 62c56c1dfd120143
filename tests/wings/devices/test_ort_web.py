"""Models in a browser, as a target of the race."""

from collections.abc import Iterator
from pathlib import Path

import needs
import numpy as np
import onnx
import onnx_text
import psutil
import pytest
from runtime_environments import home_with

from gauntlet.race.expected_outputs import ExpectedOutputs
from gauntlet.race.target_validation import validate_target
from gauntlet.runtime.worker_client import WorkerClient
from gauntlet.targets import by_name
from wings.devices.ort_web import OrtWeb


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with home_with(["web"], tmp_path_factory.mktemp("home")) as root:
        yield root


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("inputs") / "in.npz"
    np.savez(path, input=np.random.default_rng(0).standard_normal((4, 3, 32, 32), dtype=np.float32))
    return path


def available() -> OrtWeb:
    if why := OrtWeb().unavailable():
        needs.missing(why)
    return OrtWeb()


def test_target_is_known_by_its_name_and_says_how_to_get_its_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GAUNTLET_HOME", str(tmp_path))
    assert isinstance(by_name("ort-web-wasm"), OrtWeb)
    assert "gauntlet targets install web" in (by_name("ort-web-webgpu").unavailable() or "")


def test_target_is_unavailable_when_there_is_no_browser(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gauntlet.targets.environments.missing", lambda _: None)
    assert OrtWeb(browser="no-such-browser").unavailable() == "no-such-browser is not on the PATH"


@pytest.mark.slow
@pytest.mark.usefixtures("home")
def test_target_does_what_it_says(trained, inputs: Path) -> None:
    expected = ExpectedOutputs.of(trained.path, inputs, 60)
    truth = validate_target(trained.path, available(), expected, inputs, threads=2, timeout_s=200)
    assert (truth.reason, truth.macs_share, truth.effective) == (None, 1, "f32")


@pytest.mark.slow
def test_web_takes_half_floats_and_any_name(home, tmp_path: Path) -> None:
    name = "in?put#1/ü"
    text = f"""
        half (float16[n,4] "{name}") => (float16[n,4] "a & b=c")
        {{ [square] "a & b=c" = Mul("{name}", "{name}") }}
    """
    model, inputs = tmp_path / "half #1?.onnx", tmp_path / "in.npz"
    onnx.save(onnx_text.model(text), model)
    np.savez(inputs, **{name: np.linspace(-2, 2, 12, dtype=np.float16).reshape(3, 4)})
    expected = ExpectedOutputs.of(model, inputs, 60)
    truth = validate_target(
        tmp_path / "half #1?.onnx", available(), expected, tmp_path / "in.npz", threads=1, timeout_s=60
    )
    assert truth.error is None
    assert truth.sqnr_db > 57


@pytest.mark.slow
def test_no_browser_is_left_when_its_worker_is_killed(home, trained, inputs: Path) -> None:
    needs.chromium()
    target = OrtWeb()
    with WorkerClient(target.command()) as worker:
        worker.load(trained.path, inputs, 1, 60, target.options())
        assert worker.run(2, 1, 60)["repeatability_db"] == float("inf")
        browsers = psutil.Process(worker._process.pid).children(recursive=True)
        assert len(browsers) > 1
    _, alive = psutil.wait_procs(browsers, timeout=60)
    assert alive == []
