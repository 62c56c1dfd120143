"""The wheel works in a new environment, and an ONNX file needs no more than what `make onnx` asks for.

pip takes minutes to install that, so its environment has links to what is installed here: what the project's own
requirements name, and what these require in turn.
"""

import os
import re
import runpy
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable, Iterable
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import exported_models
import numpy as np
import onnx
import pytest
from harness import sets
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from PIL import Image

from gauntlet.core.kinds import NAMES
from gauntlet.core.run_report import RunReport

PROJECT = Path(__file__).parents[1]
PYPROJECT = (PROJECT / "pyproject.toml").read_text()
PACKAGES = tomllib.loads(PYPROJECT)["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
QUICK = ("benchmark.batch_sizes=[1]", "benchmark.rounds=6", "benchmark.block_ms=2", "benchmark.restart_processes=false")
QUICK += ("numerics.samples=8", "quantize=[{kind: static}]")
Call = Callable[..., subprocess.CompletedProcess[str]]


def wheel_project() -> dict[str, Any]:
    script = runpy.run_path(str(PROJECT / ".ci" / "wheel"))
    return dict(tomllib.loads(script["wheel_project"](PYPROJECT)))


def test_wheel_requires_the_cpu_build_of_onnx_runtime_and_no_mlflow() -> None:
    names = [Requirement(text).name for text in wheel_project()["project"]["dependencies"]]
    assert [name for name in names if name.startswith("onnxruntime")] == ["onnxruntime"]
    assert {"prefect", "onnxslim", "matplotlib"} <= {*names}
    assert "mlflow" not in names


def test_wheel_changes_nothing_but_requirements() -> None:
    wheel, checkout = wheel_project(), tomllib.loads(PYPROJECT)
    for each in (wheel, checkout):
        del each["project"]["dependencies"], each["project"]["optional-dependencies"]["jax"]
    assert wheel == checkout


def test_wheel_has_every_package_that_may_be_shadowed() -> None:
    assert sorted(PACKAGES) == sorted([*NAMES, "gauntlet"])


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, PROJECT / ".ci" / "wheel", folder], check=True)
    [path] = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of programs of a new environment, in which pip has installed the wheel."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = [folder / "bin" / "python", "-I"]  # a PYTHONPATH may have the checkout
    pip = ["-m", "pip", "install", "--quiet", "--no-compile"]
    subprocess.run([*python, *pip, "--constraint", PROJECT / "constraints.txt", wheel], check=True)
    return folder / "bin"


@pytest.fixture
def call(environment: Path, tmp_path: Path) -> Call:
    """Call a program of the environment in an empty folder, with an empty home and none of this process's settings."""
    folder, home = tmp_path / "empty", tmp_path / "home"
    folder.mkdir()
    home.mkdir()
    own = {"HOME": str(home), "GAUNTLET_HOME": str(tmp_path / "runs"), "GAUNTLET_HOST_LOCK": str(tmp_path / "lock")}

    def called(program: str, *words: str) -> subprocess.CompletedProcess[str]:
        command = [environment / program, *words]
        variables = {"PATH": os.environ["PATH"], **own}
        return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False)

    return called


@pytest.mark.nightly
def test_wheel_has_every_file_of_the_packages(wheel: Path) -> None:
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    listed = subprocess.check_output(["git", "ls-files", "-z", *PACKAGES], cwd=PROJECT, text=True)
    assert names == set(filter(None, listed.split("\0")))


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_onnx_file_runs_beside_a_folder_of_the_users_own_flows(call: Call, tmp_path: Path) -> None:
    onnx.save(exported_models.convolutions(17), tmp_path / "empty" / "model.onnx")
    (tmp_path / "empty" / "flows.py").write_text("raise SystemExit('not the flows of onnx-gauntlet')\n")
    (tmp_path / "empty" / "images").mkdir()
    for number, pixels in enumerate(np.random.default_rng(0).integers(0, 256, (24, 32, 32, 3), dtype=np.uint8)):
        Image.fromarray(pixels).save(tmp_path / "empty" / "images" / f"{number}.png")
    done = call("gauntlet", "run", "model.onnx", "--data", "images", "--out", "winner.onnx", *sets(*QUICK))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "MLflow" not in done.stdout + done.stderr
    assert "More: gauntlet show, gauntlet runs" in done.stdout
    [page] = (tmp_path / "runs" / "runs").glob("*/report.html")
    assert "Winner" in page.read_text()
    for words in (("bundle", "--out", "w.zip"), ("verify", "w.zip"), ("predict", "w.zip", "images/0.png"), ("clean",)):
        done = call("onnx-gauntlet", *words)
        assert done.returncode == 0, done.stdout + done.stderr
    assert onnx.load(tmp_path / "empty" / "winner.onnx").graph.node


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_commands_without_a_run_work_and_name_what_is_missing(call: Call) -> None:
    assert "onnxruntime 1" in call("gauntlet", "--version").stdout
    assert '"PipelineConfig"' in call("gauntlet", "validate", "--schema").stdout
    shown = call("gauntlet", "validate", "digits-resnet18")
    assert "pip install 'onnx-gauntlet[torch]'" in shown.stdout + shown.stderr
    for words, extra in ((["sync"], "pipeline"), (["serve", "w.zip"], "serving")):
        done = call("gauntlet", *words)
        assert (done.returncode, done.stdout) == (2, "")
        assert f"install it with: pip install 'onnx-gauntlet[{extra}]'" in done.stderr
    assert call("python", "-c", "import gauntlet; gauntlet.load").returncode == 0


FRAMEWORKS = ("torch", "torchvision", "triton", "tensorflow", "keras", "jax", "flax")


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
    onnx.save(exported_models.convolutions(11), tmp_path / "model.onnx")
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
