"""`gauntlet completion`, in the shells themselves."""

import os
import subprocess
from functools import cache
from pathlib import Path

import pytest
from harness import GAUNTLET, called

PRESET = "digits-small-cnn"


@cache
def completion(shell: str) -> str:
    return subprocess.run([GAUNTLET, "completion", shell], capture_output=True, text=True, check=True).stdout


def completed(folder: Path, *words: str) -> list[str]:
    """Return what bash completes the last word with."""
    script = f"""{completion("bash")}
complete -p gauntlet
COMP_WORDS=(gauntlet "$@")
COMP_CWORD=$#
_gauntlet
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    environment = {**os.environ, "GAUNTLET_HOME": str(folder)}
    done = subprocess.run(
        ["bash", "-uc", script, "bash", *words], env=environment, capture_output=True, text=True, check=True
    )
    first, *found = done.stdout.splitlines()
    assert first == "complete -o bashdefault -o default -F _gauntlet gauntlet"
    assert not done.stderr
    return [word for word in found if word]


@pytest.mark.parametrize(
    ("words", "among"),
    [
        ([""], {"run", "show", "bundle", "completion"}),
        (["ru"], {"run", "runs"}),
        (["run", "digits-sm"], {PRESET}),
        (["run", PRESET, "--task", "cl"], {"classification"}),
        (["run", "--fr"], {"--fresh"}),
        (["completion", ""], {"bash", "zsh"}),
        (["targets", ""], {"install"}),
        (["--v"], {"--version"}),
    ],
)
def test_bash_completes_commands_options_values_and_presets(words: list[str], among: set[str], tmp_path: Path) -> None:
    found = completed(tmp_path, *words)
    assert among <= {*found}
    assert all(word.startswith(words[-1]) for word in found)


@pytest.mark.parametrize("words", [["run", "model"], ["run", "--data", ""], ["bench", ""], ["nonsense", ""]])
def test_bash_leaves_files_to_itself(words: list[str], tmp_path: Path) -> None:
    assert completed(tmp_path, *words) == []


def test_bash_completes_runs_and_runs_nothing_in_their_names(tmp_path: Path) -> None:
    (tmp_path / "runs" / "20260131-120000-digits-1f2e").mkdir(parents=True)
    (tmp_path / "runs" / "$(touch made)").mkdir()
    assert completed(tmp_path, "compare", "2026") == ["20260131-120000-digits-1f2e"]
    assert {*completed(tmp_path, "show", "")} == {"touchmade", "20260131-120000-digits-1f2e"}


def test_other_shell_is_refused(tmp_path: Path) -> None:
    done = called(tmp_path, "completion", "fish")
    assert done.returncode == 2
    assert "invalid choice: 'fish'" in done.stderr
