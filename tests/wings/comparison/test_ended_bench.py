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
    process = subprocess.Popen(
        [GAUNTLET, "bench", "cnn.onnx", "again.onnx", "--rounds", "100000"],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # below nohup, it outlives its terminal
    )
    try:
        until(lambda: any(temporary.iterdir()) or process.poll() is not None, 300)
        process.send_signal(number)
        assert process.wait(300) == 128 + number
    finally:
        process.kill()
    assert not [*temporary.iterdir()]
