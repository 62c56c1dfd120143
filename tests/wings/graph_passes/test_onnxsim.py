"""What onnxsim is kept from loading, and that nothing of that stays."""

import subprocess
import sys

import pytest

from wings.graph_passes.simplifiers import _without

FRESH = """
import sys
from pathlib import Path
from wings.graph_passes.simplifiers import OnnxSim
OnnxSim().apply(Path(sys.argv[1]), Path(sys.argv[2]))
assert "onnxsim" in sys.modules and "torch" not in sys.modules
import torch
assert torch.zeros(1).sum() == 0
"""


@pytest.mark.slow
def test_onnxsim_loads_no_torch_in_a_fresh_process_and_torch_can_be_loaded_after_it(trained, tmp_path) -> None:
    command = [sys.executable, "-c", FRESH, trained.path, tmp_path / "after.onnx"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_package_is_absent_only_inside(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "hidden_package.py").write_text("VALUE = 1")
    with _without("hidden_package"), pytest.raises(ImportError):
        import hidden_package
    import hidden_package

    with _without("hidden_package"):  # it is loaded, and others may use it
        assert sys.modules["hidden_package"] is hidden_package
