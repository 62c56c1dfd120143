"""`gauntlet retrain` refuses what it cannot do before anything is started; `test_retraining` has the rest."""

import subprocess
import sys
from pathlib import Path

import pytest
from monitored_bundles import images, log_requests
from served_bundles import brightness_bundle

from flows.cli.main import main


@pytest.fixture
def log(tmp_path: Path) -> Path:
    log_requests(tmp_path / "log", brightness_bundle(tmp_path / "b"), images(1, 3))
    return tmp_path / "log"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("digits", "--held-back", "1.5"), "--held-back 1.5: Input should be less than 1"),
        (("digits", "--max-slowdown", "-1"), "--max-slowdown -1.0: Input should be greater than or equal to 0"),
        (("a/b",), "name 'a/b' is not allowed"),
    ],
)
def test_bad_option_is_refused(log: Path, capsys: pytest.CaptureFixture[str], words, message: str) -> None:
    assert main(["retrain", "--log", str(log), *words]) == 2
    assert message in capsys.readouterr().err


def test_folder_without_a_log_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["retrain", "digits", "--log", str(tmp_path / "nowhere")]) == 2
    assert "nowhere: no request log in it. Fix: name the folder" in capsys.readouterr().err


def test_command_imports_prefect_only_when_its_address_is_known() -> None:
    code = "import sys, wings.lifecycle.commands.retrain_command, wings.lifecycle.served_champion; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "prefect" not in loaded
