"""A run on a small disk says that it is full, and goes on when there is room."""

import subprocess
from pathlib import Path

import onnx
import onnx_text
import pytest
from harness import GAUNTLET, SHORT, sets

QUICK = (*SHORT, "quantize=[]", "optimize=[]", "benchmark.deploy_targets=[]")
MODEL = """m (float[n,16] x) => (float[n,4] y) <float[16,2000] w, float[2000,2000] v, float[2000,4] u>
{ h = MatMul(x, w) k = MatMul(h, v) y = MatMul(k, u) }"""

SCRIPT = """
mount -t tmpfs -o size="$1"m tmpfs home && shift || exit 99
"$@" 2>small; echo $? >small.rc
mount -o remount,size=1g home
"$@"
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("megabytes", [2, 12])  # the databases of the servers, or the artifacts, do not fit
def test_full_disk_is_one_clear_error_and_the_next_run_continues(tmp_path: Path, megabytes: int) -> None:
    home = tmp_path / "home"
    home.mkdir()
    if subprocess.run(["unshare", "-rm", "true"], check=False).returncode:
        pytest.skip("unshare may not make a mount of its own here")
    onnx.save(onnx_text.model(MODEL), tmp_path / "model.onnx")
    words = [GAUNTLET, "run", "model.onnx", *sets(*QUICK)]
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", SCRIPT, "sh", str(megabytes), "env", f"GAUNTLET_HOME={home}", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (tmp_path / "small.rc").read_text() == "3\n", done.stdout
    assert f"gauntlet: {home}: the disk is full. Fix: free space" in (tmp_path / "small").read_text()
    assert "Traceback" not in (tmp_path / "small").read_text()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Winner" in done.stdout
