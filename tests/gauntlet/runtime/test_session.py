"""Sessions: what this runtime takes, how a refusal is told, how calls are timed."""

import os
import subprocess
import sys
from itertools import count
from pathlib import Path
from time import sleep

import numpy as np
import onnx
import pytest

from gauntlet.core.errors import StageError
from gauntlet.datasets.golden import Golden
from gauntlet.runtime.batched_inference import batched_inference
from gauntlet.runtime.session import LEVELS, open_session, supported_ir_version, supported_opset
from gauntlet.runtime.timing import time_calls


@pytest.mark.parametrize("level", LEVELS)
def test_session_answers_the_same_when_the_level_is_another(trained, level: str) -> None:
    golden = Golden.load(trained.store.path(trained.golden))
    inputs = {"input": golden.real.inputs["input"][:5]}
    actual = batched_inference(open_session(trained.path, level=level), inputs).run(5)["logits"]
    np.testing.assert_allclose(actual, golden.real.outputs["logits"][:5], rtol=0, atol=1e-5)


def test_session_is_refused_with_a_stage_error_when_the_model_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"hello")
    for model in (tmp_path / "m.onnx", tmp_path / "absent.onnx", b"hello"):
        with pytest.raises(StageError, match="refuses the model"):
            open_session(model)


def test_newest_versions_load_and_the_next_do_not_when_tried(trained) -> None:
    proto = trained.proto()
    proto.ir_version = supported_ir_version()
    open_session(proto.SerializeToString())
    proto.ir_version += 1
    if proto.ir_version <= onnx.IR_VERSION:
        with pytest.raises(StageError):
            open_session(proto.SerializeToString())
    assert 18 <= supported_opset() <= onnx.defs.onnx_opset_version()


FIRST = ("gauntlet.runtime.session", "tasks.quantize.static", "flows.cli.main")


@pytest.mark.parametrize("module", FIRST)
def test_onnx_runtime_keeps_no_device_id(tmp_path: Path, module: str) -> None:
    """It writes one below the home's cache as soon as it is imported, unless this is turned off before."""
    unset = ("CI", "ORT_DISABLE_TELEMETRY", "XDG_CACHE_HOME")  # it is silent in continuous integration anyway
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    code = f"import {module}, onnxruntime, os; assert os.environ['ORT_DISABLE_TELEMETRY'] == '1'"
    subprocess.run([sys.executable, "-c", code], env=environment | {"HOME": str(tmp_path)}, check=True)
    assert not list(tmp_path.rglob(".onnxruntime"))


def test_what_the_user_set_stays() -> None:
    code = "import gauntlet, os; assert os.environ['ORT_DISABLE_TELEMETRY'] == '0'"
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "ORT_DISABLE_TELEMETRY": "0"}, check=True)


@pytest.mark.parametrize(
    ("at_least_ms", "limits", "calls"),
    [(0, {}, 1), (0, {"least": 3}, 3), (1e9, {"most": 4}, 4), (0, {"least": 2, "most": 5}, 2)],
)
def test_calls_end_by_time_or_number(at_least_ms: float, limits: dict[str, int], calls: int) -> None:
    samples_ms, last = time_calls(count(1).__next__, at_least_ms, **limits)
    assert (len(samples_ms), last) == (calls, calls)


def test_every_call_is_timed_on_its_own() -> None:
    samples_ms, _ = time_calls(lambda: sleep(0.002), 10)
    assert len(samples_ms) <= 5
    assert min(samples_ms) >= 2
