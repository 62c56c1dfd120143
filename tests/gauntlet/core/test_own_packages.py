"""A user's folder may have names that this project's packages have."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gauntlet.core.kinds import FOLDER

STARTS = (("-m", "gauntlet", "--version"), ("-c", "import gauntlet; gauntlet.show()"))


def start(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(FOLDER)}
    command = [sys.executable, *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("words", STARTS, ids=("command", "python"))
@pytest.mark.parametrize("file", ["flows.py", "tasks/__init__.py"])
def test_module_imported_in_place_of_ours_is_named(tmp_path: Path, file: str, words: tuple[str, ...]) -> None:
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    path.touch()
    done = start(tmp_path, *words)
    assert f"{path}: Python imports it in place of onnx-gauntlet's package {file[:5]!r}. Fix: rename it" in done.stderr
    assert done.returncode in (1, 2)


def test_folder_without_init_is_no_reason_to_refuse(tmp_path: Path) -> None:
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "train.py").touch()
    done = start(tmp_path, *STARTS[0])
    assert (done.returncode, done.stderr) == (0, "")
