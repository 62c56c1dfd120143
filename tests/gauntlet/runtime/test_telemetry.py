"""Nothing of ours makes ONNX Runtime report to its vendor, whichever of our modules is imported first."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

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
