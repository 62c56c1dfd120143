"""`promote`, `rollback` and `history` on a terminal: what they print, and their exit codes."""

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from flows.cli.main import main
from gauntlet.core.report import Check
from wings.lifecycle.commands import history_command
from wings.lifecycle.library.promotion.ledger import Ledger
from wings.lifecycle.registry.model_history import History

Run = Callable[..., tuple[int, str, str]]
A, B, C = "a" * 64, "b" * 64, "c" * 64


@pytest.fixture
def gauntlet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command in this process; returns its exit code, its output and its errors."""
    monkeypatch.setenv("GAUNTLET_HOME", str(tmp_path / ".gauntlet"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)

    def run(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(words)
        told = capsys.readouterr()
        return code, told.out, told.err

    return run


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    made = Ledger(tmp_path / ".gauntlet" / "ledgers" / "digits.jsonl")
    who = {"by": "somebody@a-machine-with-a-long-name.example", "registry": "http://127.0.0.1:9"}
    made.append("promote", **who, role="champion", digest=A, after={"champion": A})
    made.append("commit", by=who["by"], intent=1, versions={A: "1"}, seconds=0.2)
    failed = Check.of("promote.max_slowdown", 0.12, "<=", 0.05)
    made.append("refuse", **who, role="champion", digest=B, before={"champion": A}, checks=(failed,))
    made.append("promote", **who, role="champion", digest=C, before={"champion": A}, why="it is faster by a third")
    return made


def drawn(found: History) -> str:
    text = io.StringIO()
    history_command._print(Console(file=text, width=80), found)
    return text.getvalue()


def test_history_fits_80_columns_and_names_every_outcome(ledger: Ledger) -> None:
    text = drawn(History("digits", ledger.entries(), aliases={"champion": A}))
    table = text.splitlines()
    assert max(map(len, table)) <= 80
    for word in ("done", "refused", "interrupted", "promote.max_slowdown", "champion: version 1", "chain is intact"):
        assert word in " ".join(text.split())


def test_history_of_a_broken_chain_ends_with_1_and_names_the_line(ledger: Ledger, gauntlet: Run) -> None:
    ledger.path.write_bytes(ledger.path.read_bytes().replace(b"0.12", b"0.01"))
    code, out, _ = gauntlet("history", "digits")
    assert code == 1
    assert "digits.jsonl, line 4: it does not follow" in out
    told = json.loads(gauntlet("history", "digits", "--json")[1])
    assert (told["intact"], len(told["entries"])) == (False, 3)


def test_history_without_its_registry_is_shown_all_the_same(ledger: Ledger, gauntlet: Run) -> None:
    code, out, _ = gauntlet("history", "digits")
    assert code == 0
    assert "Not compared: the model registry at http://127.0.0.1:9 did not respond" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("history", "nobody"), "nobody: nothing was promoted under this name here; known: none"),
        (("promote", "nothing"), "nothing: neither a bundle nor a run"),
        (("promote", "x", "--max-slowdown", "-1"), "--max-slowdown -1.0: Input should be greater than or equal to 0"),
        (("rollback", "../x"), "name '../x' is not allowed"),
    ],
)
def test_bad_arguments_end_with_2_and_one_line(gauntlet: Run, words: tuple[str, ...], message: str) -> None:
    code, _, err = gauntlet(*words)
    assert (code, len(err.splitlines())) == (2, 1), err
    assert message in err
