"""`gauntlet bench` that is ended from outside."""

import os
import signal
import subprocess
from pathlib import Path

import faulty_models
import onnx
import pytest
from harness import GAUNTLET, until


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_race_that_is_ended_by_a_signal_leaves_no_folder_behind(tmp_path: Path, number: signal.Signals) -> None:
    for name in ("cnn", "again"):
        onnx.save(faulty_models.cnn(), tmp_path / f"{name}.onnx")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    environment = os.environ | {"TMPDIR": str(temporary), "GAUNTLET_HOST_LOCK": str(tmp_path / "lock")}
    words = ("bench", "cnn.onnx", "again.onnx", "--rounds", "100000")
    nowhere = subprocess.DEVNULL
    process = subprocess.Popen([GAUNTLET, *words], cwd=tmp_path, env=environment, stdout=nowhere, stderr=nowhere)
    until(lambda: any(temporary.iterdir()) or process.poll() is not None, 300)
    process.send_signal(number)
    assert process.wait(300) == 128 + number
    assert not [*temporary.iterdir()]
