"""An ONNX file needs no training framework: `make onnx` in a clean folder, and a run in what it installs."""

import os
import shutil
import subprocess
from pathlib import Path

import needs
import onnx
import pytest
import written_models
from harness import sets

from gauntlet.core.run_report import RunReport

PROJECT = Path(__file__).parents[1]
NEEDED = ("configs", "flows", "gauntlet", "serving", "tasks", ".ci", "Makefile", "constraints.txt", "pyproject.toml")
FRAMEWORKS = ("torch", "torchvision", "tensorflow", "keras", "jax")
QUICK = ("benchmark.batch_sizes=[1]", "benchmark.rounds=6", "benchmark.block_ms=2", "benchmark.restart_processes=false")
QUICK += ("numerics.samples=8", "quantize=[{kind: static}]")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_onnx_file_runs_in_an_environment_without_a_training_framework(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    for name in (*NEEDED, "README.md", "LICENSE"):
        source = PROJECT / name
        copy = shutil.copytree if source.is_dir() else shutil.copyfile
        copy(source, project / name)
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    made = subprocess.run(
        ["make", "onnx"], cwd=project, env=environment, capture_output=True, text=True, check=False
    )
    if made.returncode != 0 and "No matching distribution" in made.stderr + made.stdout:
        needs.missing("the package index cannot be reached")
    assert made.returncode == 0, made.stdout + made.stderr
    packages = next((project / ".venv" / "lib").glob("python*")) / "site-packages"
    assert not [name for name in FRAMEWORKS if (packages / name).exists()]
    onnx.save(written_models.convolutions(11), tmp_path / "model.onnx")
    done = subprocess.run(
        [project / ".venv" / "bin" / "gauntlet", "run", "model.onnx", *sets(*QUICK)],
        cwd=tmp_path,
        env=environment | {"GAUNTLET_HOME": str(tmp_path / "home"), "GAUNTLET_HOST_LOCK": str(tmp_path / "lock")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    [report] = (tmp_path / "home" / "runs").glob("*/report.json")
    assert RunReport.model_validate_json(report.read_bytes()).winner is not None
