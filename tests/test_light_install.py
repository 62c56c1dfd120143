"""An ONNX file needs no training framework: a run with nothing but the packages that `make onnx` asks for.

pip takes minutes to install them, so the environment has links to those that are installed here: what the project's own
requirements name, and what these require in turn.
"""

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import onnx
import pytest
import written_models
from harness import sets
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from gauntlet.core.run_report import RunReport

PROJECT = Path(__file__).parents[1]
FRAMEWORKS = ("torch", "torchvision", "triton", "tensorflow", "keras", "jax", "flax")
QUICK = ("benchmark.batch_sizes=[1]", "benchmark.rounds=6", "benchmark.block_ms=2", "benchmark.restart_processes=false")
QUICK += ("numerics.samples=8", "quantize=[{kind: static}]")


def asked_by_make() -> list[str]:
    """Return the requirements of what `make onnx` installs."""
    rule = re.search(r"^\.venv/onnx:.*?\n\n", (PROJECT / "Makefile").read_text(), re.MULTILINE | re.DOTALL)
    assert rule
    extras = re.findall(r"--editable '\.\[(.*?)\]'", rule[0])
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    optional = [word for extra in ",".join(extras).split(",") for word in project["optional-dependencies"][extra]]
    return [*project["dependencies"], *optional]


def required(texts: Iterable[str]) -> set[str]:
    """Return the distributions that requirements need, at any depth."""
    found: set[str] = set()
    waiting = [(Requirement(text), "") for text in texts]
    while waiting:
        requirement, extra = waiting.pop()
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        for wanted in ("", *requirement.extras):
            key = f"{canonicalize_name(requirement.name)}[{wanted}]"
            if key not in found:
                found.add(key)
                further = distribution(requirement.name).requires or []
                waiting += [(Requirement(text), wanted) for text in further]
    return {key.partition("[")[0] for key in found}


def environment_of(names: Iterable[str], folder: Path) -> Path:
    """Make an environment with links to installed distributions; return its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    [site] = folder.glob("lib/python*/site-packages")
    for name in names:
        files = [file for file in distribution(name).files or [] if file.parts[0] not in ("..", "__pycache__")]
        for top in {file.parts[0] for file in files}:
            if not (site / top).exists():
                (site / top).symlink_to(str(distribution(name).locate_file(top)))
    return folder / "bin" / "python"


def test_what_make_onnx_asks_for_has_no_training_framework() -> None:
    try:
        names = required(asked_by_make())
    except PackageNotFoundError as error:
        pytest.fail(f"{error.name} is required, and not installed")
    assert names.isdisjoint(FRAMEWORKS)
    assert {"onnxruntime-gpu", "prefect", "mlflow"} <= names


@pytest.mark.nightly
def test_onnx_file_runs_in_an_environment_without_a_training_framework(tmp_path: Path) -> None:
    python = environment_of({"onnx-gauntlet", *required(asked_by_make())}, tmp_path / "environment")
    onnx.save(written_models.convolutions(11), tmp_path / "model.onnx")
    own = {"GAUNTLET_HOME": str(tmp_path / "home"), "GAUNTLET_HOST_LOCK": str(tmp_path / "lock")}

    def call(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [python, *words],
            cwd=tmp_path,
            env=os.environ | own | {"PYTHONPATH": str(PROJECT)},
            capture_output=True,
            text=True,
            check=False,
        )

    assert "No module named 'torch'" in call("-c", "import torch").stderr
    done = call("-m", "flows.cli.main", "run", "model.onnx", *sets(*QUICK))
    assert done.returncode == 0, done.stdout + done.stderr
    [report] = (tmp_path / "home" / "runs").glob("*/report.json")
    assert RunReport.model_validate_json(report.read_bytes()).winner is not None
