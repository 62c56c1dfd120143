"""`gauntlet bundle`: what a real run has packaged leaves the store."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from bundles import make_keys
from harness import command, latest_report

from flows.cli.main import main
from flows.record.home import Home
from gauntlet.bundle.bundle import Bundle
from gauntlet.bundle.verification import verify
from gauntlet.core.artifact import sha256_of
from gauntlet.core.run_report import RunReport


@pytest.fixture
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose home has a finished run, as the current one."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("GAUNTLET_HOME", str(folder / ".gauntlet"))
    return folder


def change_report(home: Home, **changes: object) -> None:
    folder = home.finished_run()
    assert folder is not None
    report = json.loads((folder / "report.json").read_text())
    (folder / "report.json").write_text(json.dumps(report | changes))


def test_bundle_of_a_run_is_its_winner_proven_again(here: Path, finished: RunReport) -> None:
    private, public = make_keys(here)
    done = command(here, "bundle", "--key", str(private))
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    result = verify(here / "digits-small-cnn.zip", public)
    assert result.passed, result
    bundle = Bundle.open(here / "digits-small-cnn.zip")
    winner = next(candidate for candidate in finished.candidates if candidate.name == finished.winner)
    assert winner.artifact is not None
    assert sha256_of([bundle.model]) == winner.artifact.sha256
    assert (bundle.contract.candidate, bundle.contract.session) == (finished.winner, winner.session)
    assert [row.batch for row in bundle.contract.latencies] == [1]
    kept = RunReport.model_validate_json((bundle.folder / "report.json").read_bytes())
    assert [entry.stage for entry in kept.stages][-1] == "confirm"


def test_suffix_decides_between_a_folder_and_a_zip_and_both_have_one_digest(here: Path) -> None:
    for out in ("winner", "winner.zip"):
        assert main(["bundle", "--out", out]) == 0
    folder, archived = Bundle.open(here / "winner"), Bundle.open(here / "winner.zip")
    assert (here / "winner").is_dir()
    assert folder.digest == archived.digest == str(latest_report(Home(here / ".gauntlet")).stages[-1].facts["digest"])


def test_what_exists_is_not_overwritten(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "kept.zip").write_text("mine")
    assert main(["bundle", "--out", "kept.zip"]) == 2
    assert "kept.zip: it exists" in capsys.readouterr().err
    assert (here / "kept.zip").read_text() == "mine"


def test_unusable_key_leaves_nothing_behind(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path.name for path in here.iterdir()}
    assert main(["bundle", "--key", "nothing.pem"]) == 2
    assert "nothing.pem: expected" in capsys.readouterr().err
    assert {path.name for path in here.iterdir()} == before


def test_run_without_a_bundle_is_told_what_to_do(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = Home(here / ".gauntlet")
    report = latest_report(home)
    stages = [json.loads(entry.model_dump_json()) for entry in report.stages if entry.stage != "package"]
    for changes, words in (
        ({"stages": stages}, "no stage 'package'; an earlier release made it. Fix: run it again"),
        ({"schema_version": 1}, "an earlier release made this run, without a bundle. Fix: run it again"),
        ({"schema_version": 2, "verdict": "failed", "stopped_at": "numerics"}, "the run failed at numerics"),
    ):
        change_report(home, **changes)
        assert main(["bundle"]) == 2
        assert words in capsys.readouterr().err
    assert main(["bundle", "1999"]) == 2
    assert "a run '1999'" in capsys.readouterr().err


def test_device_gets_the_winner_as_files_that_prove_themselves(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bundle", "--edge", "device"]) == 0
    assert "device: model.ort, " in capsys.readouterr().out
    assert not (here / "digits-small-cnn.zip").exists()
    done = subprocess.run([sys.executable, "device/example.py"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert main(["bundle", "--edge", "device"]) == 2
    assert "device: it exists. Fix: remove it, or choose another --edge" in capsys.readouterr().err


def test_page_needs_the_runtime_for_browsers_and_says_how_to_install_it(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bundle", "--web", "page"]) == 2
    expected = "gauntlet: --web: its environment is not installed; install it with: gauntlet targets install web\n"
    assert capsys.readouterr().err == expected
    assert not (here / "page").exists()


def test_winner_of_the_run_can_be_taught_new_labels(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bundle", "--trainable", "learn", "--out", "winner"]) == 0
    assert re.search(r"learn: training_step\.onnx, 10 classes of \d+ features", capsys.readouterr().out)
    bundle = Bundle.open(here / "winner")
    inputs, outputs = bundle.golden().inputs, bundle.golden().outputs[bundle.contract.signature.primary_output or ""]
    np.savez(here / "samples.npz", **inputs, labels=(outputs.argmax(1) + 1) % 10)
    command = [sys.executable, "learn/example.py", "samples.npz", "5", "0.01"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    losses = [float(line.rpartition(" ")[2]) for line in done.stdout.splitlines()[:-1]]
    assert losses[-1] < losses[0]


def test_key_without_a_copy_to_sign_is_refused(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bundle", "--edge", "device", "--key", "KEY.pem"]) == 2
    assert "--key signs a copy of the bundle; name one with --out" in capsys.readouterr().err
    assert not (here / "device").exists()
