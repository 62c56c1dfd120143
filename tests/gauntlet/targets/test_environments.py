"""Environments are whole or not there, and a failed installation says why in one line."""

import sys
from pathlib import Path

import pytest

from gauntlet.core.errors import StageError
from gauntlet.targets import environments
from gauntlet.targets.environments import NOTE, RuntimeEnvironment, folder, known, make, missing

STEAM = RuntimeEnvironment(python=("steam==1.0",))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GAUNTLET_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def steam(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment of that name."""
    monkeypatch.setattr(environments, "known", lambda: {"steam": STEAM})


def test_every_package_is_pinned() -> None:
    for environment in known().values():
        assert all("==" in package for package in environment.python)
        assert all("@" in package for package in environment.npm)
        assert environment.python or environment.npm


@pytest.mark.usefixtures("steam")
def test_environment_is_missing_until_the_note_is_written(home: Path) -> None:
    assert "gauntlet targets install steam" in (missing("steam") or "")
    place = folder("steam")
    assert place == home / "environments" / "steam"
    place.mkdir(parents=True)
    assert missing("steam") is not None  # the folder alone: killed in the middle
    (place / NOTE).write_text(STEAM.note)
    assert missing("steam") is None
    (place / NOTE).write_text(RuntimeEnvironment(npm=("onnxruntime-web@1.0.0",)).note)
    assert "other versions" in (missing("steam") or "")


@pytest.mark.usefixtures("steam")
def test_install_leaves_what_is_right_as_it_is() -> None:
    folder("steam").mkdir(parents=True)
    (folder("steam") / NOTE).write_text(STEAM.note)
    said: list[str] = []
    assert make(folder("steam"), STEAM, said.append) == folder("steam")
    assert said == [f"steam: already installed in {folder('steam')}"]


def test_install_says_what_is_missing_when_there_is_no_npm(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(StageError, match="npm is not on the PATH"):
        make(home / "npm", RuntimeEnvironment(npm=("left-pad@1.3.0",)), lambda _: None)
    assert not (home / "npm" / NOTE).exists()


def test_environment_is_made_again_when_it_holds_other_versions(tmp_path: Path) -> None:
    place, said = tmp_path / "mine", list[str]()
    make(place, RuntimeEnvironment(), said.append)
    (place / "left over").touch()
    make(place, RuntimeEnvironment(), said.append)
    assert (place / "left over").exists()
    (place / NOTE).write_text(RuntimeEnvironment(npm=("onnxruntime-web@1.0.0",)).note)
    make(place, RuntimeEnvironment(), said.append)
    assert not (place / "left over").exists()
    assert said == [f"mine: installed in {place}", f"mine: already installed in {place}", f"mine: installed in {place}"]


def test_install_ends_with_the_last_words_of_a_command_that_fails() -> None:
    code = "import sys; print('downloading'); sys.exit('no such package: steam')"
    with pytest.raises(StageError, match="failed: no such package: steam"):
        environments._run((sys.executable, "-c", code))
    with pytest.raises(StageError, match="cannot be installed"):
        environments._run(("/no/such/program",))
