"""A missing framework, or its removed folder, is reported in one line before a run starts; all others are there."""

import os
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from harness import command

from configs.loader import load, presets
from configs.required_packages import needed_packages
from gauntlet.core.errors import ConfigError


def needs_of_presets() -> dict[str, dict[str, tuple[str, str]]]:
    """Return what each preset needs whose framework is there."""
    found = {}
    for name in presets():
        with suppress(ConfigError):
            found[name] = needed_packages(load(name))
    return found


NEEDY = needs_of_presets()
OF_EACH_EXTRA = {extra: name for name, packages in NEEDY.items() for _, extra in list(packages.values())[:1]}
"""One preset for each framework."""
HIDE = """
import importlib.machinery, os
find = importlib.machinery.PathFinder.find_spec
def hidden(name, path=None, target=None):
    return None if name in os.environ["HIDDEN"].split(",") else find(name, path, target)
importlib.machinery.PathFinder.find_spec = hidden
"""


@pytest.fixture
def hiding(tmp_path: Path) -> dict[str, str]:
    """Environment of a process in which some packages cannot be found."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(HIDE)
    return {"PYTHONPATH": os.pathsep.join([str(tmp_path / "site"), os.environ.get("PYTHONPATH", "")])}


@pytest.mark.slow
@pytest.mark.parametrize("preset", OF_EACH_EXTRA.values())
def test_run_is_refused_in_one_line_with_the_fix_when_a_package_is_missing(
    tmp_path: Path, hiding: dict[str, str], preset: str
) -> None:
    package, (part, extra) = next(iter(NEEDY[preset].items()))
    done = command(tmp_path, "run", preset, **hiding, HIDDEN=package)
    assert done.returncode == 2
    assert done.stdout == ""
    [line] = done.stderr.splitlines()
    assert line.startswith(f"gauntlet: {preset}: {part} ")
    assert f"needs {package}, which is not installed; install it with: make {extra}" in line
    assert not (tmp_path / ".gauntlet").exists()


def test_validate_says_that_it_cannot_run_here_when_a_package_is_missing(
    tmp_path: Path, hiding: dict[str, str]
) -> None:
    preset = next(iter(OF_EACH_EXTRA.values()))
    done = command(tmp_path, "validate", preset, **hiding, HIDDEN=next(iter(NEEDY[preset])))
    assert done.returncode == 0
    assert f"but it cannot run here: {preset}: " in done.stdout


def test_validate_names_files_that_are_not_there(tmp_path: Path) -> None:
    (tmp_path / "samples.npz").touch()
    done = command(tmp_path, "validate", "bring-your-own-onnx")
    last = "but it cannot run here: train.model: model.onnx does not exist"
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, last)


def test_onnx_model_needs_no_framework_and_a_torch_network_needs_only_torch() -> None:
    assert NEEDY["bring-your-own-onnx"] == {}
    assert {extra for _, extra in NEEDY["digits-resnet18"].values()} == {"torch"}


def test_command_without_its_extra_is_refused_in_one_line_with_the_command_that_installs_it(
    tmp_path: Path, hiding: dict[str, str]
) -> None:
    done = command(tmp_path, "run", "digits-resnet18", **hiding, HIDDEN="prefect")
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert line.startswith("gauntlet: this needs prefect, which is not installed")
    assert "install it with: make onnx" in line


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
