"""Without the folder of a framework, its kinds are gone and all others are there."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMES = sorted(path.parent.name for path in (ROOT / "frameworks").glob("*/kinds.py"))
SCRIPT = """
from configs.loader import load
from configs.schema import PipelineConfig
from configs.frameworks import trainings
from gauntlet.core.errors import ConfigError
from gauntlet.targets import default_targets
PipelineConfig.model_validate({"train": {"kind": "onnx", "model": "model.onnx"}})
print(*trainings(), *(target.kind for target in default_targets()))
try:
    load("digits-resnet18")
except ConfigError as error:
    print(error)
"""


def without(folder: Path, names: list[str]) -> str:
    """Return what the script prints where these folders of frameworks are gone."""
    for package in ("configs", "flows", "gauntlet", "tasks"):
        (folder / package).symlink_to(ROOT / package)
    shutil.copytree(ROOT / "frameworks", folder / "frameworks", ignore=shutil.ignore_patterns("__pycache__", *names))
    path = os.pathsep.join((str(folder), str(ROOT)))
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=folder, env=os.environ | {"PYTHONPATH": path}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("removed", [["sklearn"], ["torch"], NAMES], ids=["sklearn", "torch", "all"])
def test_schema_loads_without_the_folder_of_a_framework(tmp_path: Path, removed: list[str]) -> None:
    kinds, *refused = without(tmp_path, removed).splitlines()
    of_kind = {"sklearn": "sklearn-model", "torch": "torch-eager", "keras": "saved-model", "jax": "jax-jit"}
    assert {"onnx", "ort-cpu"} <= set(kinds.split())
    for name, kind in of_kind.items():
        assert (kind in kinds.split()) is (name in NAMES and name not in removed)
    assert any("train.kind: torch (allowed: 'onnx'" in line for line in refused) is ("torch" in removed)
