"""The runs of a home: listed, and named where one is asked for that is not there."""

import json
from pathlib import Path
from typing import Any

import pytest
import reported_runs
from reported_runs import raced

from flows.cli.main import main
from flows.record.home import Home
from flows.record.locks import locked
from gauntlet.core.run_report import CandidateEntry

WINNER = "static-u8s8-float-head"
PASSED = "20260101-000000-digits-1f2e"
FAILED = "20260102-000000-digits-2f3e"


def write(home: Home, run: str, **changes: object) -> None:
    rows = (raced(1, 2.0, 3.0, 2.9, 3.1, "faster"),)
    small = CandidateEntry(name=WINNER, parent="fp32", status="accepted", reason="", benchmark=rows)
    known = {"run_id": run, "name": "digits", "verdict": "passed", "reason": "3x", "winner": WINNER, "config": {}}
    report = reported_runs.run(**known | {"candidates": (small,)} | changes)
    (home.runs / run).mkdir(parents=True)
    (home.runs / run / "report.json").write_text(report.model_dump_json())


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """A home with a run that passed and a later one that failed."""
    monkeypatch.setenv("GAUNTLET_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "80")
    home = Home(tmp_path)
    write(home, PASSED)
    write(home, FAILED, verdict="failed", stopped_at="numerics", winner=None)
    return home


def test_runs_are_listed_newest_first_with_what_came_of_them(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    (home.runs / "20260102-120000-digits-9f8e").mkdir()  # killed, or on a full disk, before its first event
    at_work = home.runs / "20260103-000000-digits-3f4e" / "lock"
    (home.runs / "20260104-000000-digits-4f5e").mkdir()
    (home.runs / "20260104-000000-digits-4f5e" / "report.json").write_text("{}")
    with locked(at_work):
        assert main(["runs"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines() if "digits" in line]
    assert lines == [
        "20260104-000000-digits-4f5e unknown its report is damaged, or old",
        "20260103-000000-digits-3f4e running",
        "20260102-120000-digits-9f8e unknown it has no record",
        f"{FAILED} failed stopped at numerics",
        f"{PASSED} passed {WINNER} 3.00x [2.90, 3.10]",
    ]


def test_long_id_is_folded_and_hides_no_verdict(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    long = f"20260105-000000-{'digits' * 12}-5f6e"
    write(home, long)
    assert main(["runs"]) == 0
    first, *more = [line.split() for line in capsys.readouterr().out.splitlines()[2:5]]
    assert first[1:3] == ["passed", WINNER]
    assert "".join((first[0], *(words[0] for words in more))) == long


def test_last_limits_the_list(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "--last", "1"]) == 0
    out = capsys.readouterr().out
    assert (FAILED in out, PASSED in out) == (True, False)


def test_run_that_is_not_there_is_refused_with_those_that_are(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "nope"]) == 2
    assert f"a run 'nope'; available: {FAILED}, {PASSED}. Fix: list all with: gauntlet runs" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "where"),
    [
        *((content, "") for content in (b"", b"{not json", b"[]", b"\xff\xfe\x00")),
        (b"{}", " (run_id: Field required)"),
        ({"seconds": "long"}, " (seconds: Input should be a valid number, unable to parse string as a number)"),
        ({"winner": "ghost"}, " (winner: 'ghost'; accepted: "),
    ],
)
@pytest.mark.parametrize("command", [["show"], ["show", "--json"], ["bundle"]], ids=" ".join)
def test_damaged_report_is_named_in_one_line(
    home: Home, capsys: pytest.CaptureFixture[str], command: list[str], content: Any, where: str
) -> None:
    file = home.runs / PASSED / "report.json"
    changed = content if isinstance(content, bytes) else json.dumps(json.loads(file.read_text()) | content).encode()
    file.write_bytes(changed)
    assert main([command[0], PASSED, *command[1:]]) == 2
    words = " ".join("".join(capsys.readouterr()).split())
    assert f"{file}: damaged, or of another release{where}" in words
    assert words.endswith("Fix: run the model again")
