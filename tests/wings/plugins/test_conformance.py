"""A stranger's package adds a target and a pass: it is installed, found, proven by the suite, and raced."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import faulty_models
import needs
import onnx
import pytest

pytestmark = pytest.mark.slow
PLUGIN = Path(__file__).parents[3] / "examples" / "plugin"
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the example installed in it."""
    folder = tmp_path_factory.mktemp("plugin")
    shutil.copytree(PLUGIN, folder / "source")
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index")
    subprocess.run((*pip, "--target", str(folder / "site"), str(folder / "source")), check=True)
    return folder / "site"


@pytest.fixture
def run(site: Path, tmp_path: Path) -> Run:
    """Return a function that runs a module where the example is installed."""

    def go(*words: str, package: Path = site) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join((str(package), str(Path(__file__).parents[3])))
        home = {"PYTHONPATH": path, "GAUNTLET_HOME": str(tmp_path / "home")}
        command = (sys.executable, "-m", *words)
        return subprocess.run(command, capture_output=True, text=True, env=os.environ | home, cwd=tmp_path, check=False)

    return go


def suite(run: Run, package: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return run("pytest", "--pyargs", "wings.plugins.conformance", "-p", "no:cacheprovider", *options, package=package)


@pytest.mark.nightly
def test_example_and_all_kinds_of_the_frameworks_pass_the_suite(run: Run, site: Path) -> None:
    done = suite(run, site, "-v")
    assert done.returncode == 0, done.stdout
    passed = [line for line in done.stdout.splitlines() if " PASSED " in line]
    assert sum("onnx-reference" in line or "no-identity" in line or "onnx_reference" in line for line in passed) == 5


WRONG = {
    "pass_leaves_the_outputs": ("no_identity.py", "sources.get(name, name)", "next(iter(sources.values()), name)"),
    "target_gives_the_outputs": ("engine.py", "feed), list", "feed), lambda outputs: [2 * array for array in outputs]"),
    "configuration_does_not_import": ("target.py", "from typing", "import torch\nfrom typing"),
}
"""Test -> the file to change, so that it fails, and how."""


def test_suite_fails_for_a_package_that_is_wrong(run: Run, site: Path, tmp_path: Path) -> None:
    shutil.copytree(site, tmp_path / "site")
    for file, old, new in WRONG.values():
        module = tmp_path / "site" / "onnx_reference" / file
        text = module.read_text()
        assert old in text
        module.write_text(text.replace(old, new))
    done = suite(run, tmp_path / "site", "-k", "onnx-reference or no-identity or onnx_reference")
    failed = [line for line in done.stdout.splitlines() if line.startswith("FAILED")]
    assert len(failed) == len(WRONG)
    assert all(any(test in line for line in failed) for test in WRONG), done.stdout


def test_target_of_a_package_races(run: Run, tmp_path: Path) -> None:
    needs.every_wing()  # `gauntlet bench` is in one
    onnx.save(faulty_models.cnn(batch="n"), tmp_path / "cnn.onnx")
    quick = ("--batch", "1,2", "--rounds", "6", "--block-ms", "2", "--threads", "1")
    done = run("flows.cli.main", "bench", "cnn.onnx", "--targets", "ort-cpu,onnx-reference", *quick, "--json")
    assert done.returncode == 0, done.stderr
    statuses = {(pair["candidate"], pair["target"]): pair["status"] for pair in json.loads(done.stdout)["pairs"]}
    assert statuses == {("cnn", "ort-cpu"): "measured", ("cnn", "onnx-reference"): "measured"}
