"""`gauntlet bundle`: what a real run has packaged leaves the store."""

import json
import shutil
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from bundles import make_keys
from harness import command, latest_report

from flows.cli.main import main
from flows.record.home import Home
from gauntlet.bundle.bundle import Bundle
from gauntlet.core.artifact import sha256_of
from gauntlet.core.kinds import GROUP, kinds, points
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
    from wings.verification.library.verification import verify

    private, public = make_keys(here)
    done = command(here, "bundle", "--key", str(private))
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    result = verify(here / "digits-small-cnn.zip", public)
    assert result.passed, result
    bundle = Bundle.open(here / "digits-small-cnn.zip")
    winner = next(candidate for candidate in finished.candidates if candidate.name == finished.winner)
    assert sha256_of([bundle.model]) == winner.artifact.sha256
    assert (bundle.contract.candidate, bundle.contract.session) == (finished.winner, winner.session)
    assert [row.batch for row in bundle.contract.latencies] == [1]
    kept = RunReport.model_validate_json((bundle.folder / "report.json").read_bytes())
    assert [entry.stage for entry in kept.stages][-1] == "select"


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
    pytest.importorskip("wings.verification")
    before = {path.name for path in here.iterdir()}
    assert main(["bundle", "--key", "nothing.pem"]) == 2
    assert "nothing.pem: expected" in capsys.readouterr().err
    assert {path.name for path in here.iterdir()} == before


def test_run_without_a_bundle_is_told_what_to_do(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = Home(here / ".gauntlet")
    report = latest_report(home)
    stages = [json.loads(entry.model_dump_json()) for entry in report.stages if entry.stage != "package"]
    for changes, words in (
        ({"stages": stages}, "the run has no bundle"),
        ({"verdict": "failed", "stopped_at": "numerics"}, "the run failed at numerics"),
    ):
        change_report(home, **changes)
        assert main(["bundle"]) == 2
        assert words in capsys.readouterr().err
    assert main(["bundle", "1999"]) == 2
    assert "a run '1999'" in capsys.readouterr().err


def test_bundle_that_was_replaced_in_the_store_is_not_delivered(
    here: Path, finished: RunReport, packed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = finished.stage("package").artifacts["bundle"]
    stored = Home(here / ".gauntlet").store.path(bundle)
    stored.unlink()  # the file may be linked elsewhere
    shutil.copyfile(packed, stored)
    assert main(["bundle"]) == 2
    assert "not in the store any more, or was changed" in capsys.readouterr().err


def test_bundle_without_a_run_is_of_the_newest_that_has_one(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = Home(here / ".gauntlet")
    [passed] = home.run_folders()
    shutil.copytree(passed, home.runs / "99990101-000000-digits-ffff")
    change_report(home, verdict="failed", stopped_at="numerics", run_id="99990101-000000-digits-ffff")
    assert main(["bundle"]) == 0
    assert f"Run {passed.name}, the newest one with a bundle" in capsys.readouterr().out
    assert (here / "digits-small-cnn.zip").is_file()


@pytest.fixture
def delivery(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package that writes the name of the model as a delivery."""

    def note(bundle: Bundle, target: Path) -> list[str]:
        """Write a note."""
        target.write_text(bundle.contract.name)
        return [f"{target}: a note"]

    point = EntryPoint("delivery.note", "", GROUP)
    monkeypatch.setattr(EntryPoint, "load", lambda self: note)
    monkeypatch.setattr("gauntlet.core.kinds.entry_points", lambda group: [point])
    kinds.cache_clear()
    points.cache_clear()
    yield
    kinds.cache_clear()
    points.cache_clear()


@pytest.mark.usefixtures("delivery")
def test_what_a_package_delivers_is_an_option(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["bundle", "--help"])
    assert "write a note, instead of a copy" in " ".join(capsys.readouterr().out.split())
    assert main(["bundle", "--note", "n.txt"]) == 0
    assert capsys.readouterr().out == "n.txt: a note\n"
    assert (here / "n.txt").read_text() == "digits-small-cnn"
    assert not (here / "digits-small-cnn.zip").exists()


@pytest.mark.usefixtures("delivery")
def test_key_without_a_copy_to_sign_is_refused(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bundle", "--note", "n.txt", "--key", "KEY.pem"]) == 2
    assert "--key signs a copy of the bundle; name one with --out" in capsys.readouterr().err
    assert not (here / "n.txt").exists()
