"""`promote`, `rollback`, `history`, `retrain` and the options of `up`: what they print, and their exit codes."""

import argparse
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from harness import HIDDEN, command
from ledger_lines import append
from loaded_modules import modules_after
from monitored_bundles import images, log_requests
from rich.console import Console
from served_bundles import brightness_bundle

from flows.cli.main import main
from gauntlet.core.errors import ConfigError
from gauntlet.core.report import Check
from wings.lifecycle.commands import history_command
from wings.lifecycle.library.promotion.ledger import Ledger
from wings.lifecycle.registry.model_history import History
from wings.lifecycle.served_champion import require_same, settings

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
    append(made, "promote", **who, role="champion", digest=A, after={"champion": A})
    append(made, "commit", by=who["by"], intent=1, versions={A: "1"}, seconds=0.2)
    failed = Check.of("promote.max_slowdown", 0.12, "<=", 0.05)
    append(made, "refuse", **who, role="champion", digest=B, before={"champion": A}, checks=(failed,))
    append(made, "promote", **who, role="champion", digest=C, before={"champion": A}, why="it is faster by a third")
    return made


def drawn(found: History) -> str:
    text = io.StringIO()
    history_command._print(Console(file=text, width=80), found)
    return text.getvalue()


def test_history_fits_80_columns_and_names_every_outcome(ledger: Ledger) -> None:
    text = drawn(History("digits", ledger.entries(), aliases={"champion": A}))
    assert max(map(len, text.splitlines())) <= 80
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


@pytest.mark.skipif(sys.platform != "linux", reason="nobody writes to /sys, not even as root")
def test_home_that_cannot_be_written_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GAUNTLET_HOME", "/sys/gauntlet")
    assert main(["rollback", "digits", "--why", "slower"]) == 2
    assert "set GAUNTLET_HOME to a folder that you may write" in capsys.readouterr().err


@pytest.fixture
def log(tmp_path: Path) -> Path:
    log_requests(tmp_path / "log", brightness_bundle(tmp_path / "b"), images(1, 3))
    return tmp_path / "log"


@pytest.mark.parametrize("words", [("monitor", "digits"), ("monitor", "digits", "--roll-back"), ("canary", "digits")])
def test_looks_go_on_when_the_registry_is_away(
    ledger: Ledger, gauntlet: Run, log: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    pauses = [None]  # the second one raises IndexError
    monkeypatch.setattr("wings.lifecycle.commands.monitor_command.time.sleep", lambda _: pauses.pop())
    with pytest.raises(IndexError):
        gauntlet(*words, "--log", str(log), "--every", "7")
    assert gauntlet(*words, "--log", str(log))[0] == 3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("digits", "--held-back", "1.5"), "--held-back 1.5: Input should be less than 1"),
        (("digits", "--max-slowdown", "-1"), "--max-slowdown -1.0: Input should be greater than or equal to 0"),
        (("a/b",), "name 'a/b' is not allowed"),
        (("digits", "--log", "nowhere"), "nowhere: no request log in it. Fix: name the folder"),
    ],
)
def test_bad_option_is_refused(log: Path, capsys: pytest.CaptureFixture[str], words, message: str) -> None:
    assert main(["retrain", "--log", str(log), *words]) == 2
    assert message in capsys.readouterr().err


def test_command_imports_prefect_only_when_its_address_is_known() -> None:
    loaded = modules_after("import wings.lifecycle.commands.retrain_command, wings.lifecycle.served_champion")
    assert "prefect" not in loaded


@pytest.mark.parametrize("words", [("--watch-every", "60"), ("--rounds", "6"), ("--season-h", "24")])
def test_option_of_a_served_champion_without_one_is_refused(tmp_path: Path, words: tuple[str, str]) -> None:
    done = command(tmp_path, "up", *words, **HIDDEN)
    assert done.returncode == 2
    assert f"{words[0]}: nothing is served and watched. Fix: name a model with --serve NAME" in done.stderr


@pytest.mark.parametrize(("serves", "what"), [("", "serves nothing"), ("other", "serves other")])
def test_platform_that_serves_something_else_is_not_asked_to_serve(serves: str, what: str) -> None:
    with pytest.raises(ConfigError, match=f"--serve digits: what runs already {what}. Fix: gauntlet down"):
        require_same({"name": "digits"}, serves)
    require_same({"name": serves}, serves)


def test_champion_is_not_served_where_the_server_was_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "serving.options", None)
    with pytest.raises(ConfigError, match=r"--serve digits: command\.serving is in serving\.options, which is not"):
        settings(argparse.Namespace(serve="digits", watch_every=None))


def test_share_that_is_logged_and_limits_of_the_watch_are_kept() -> None:
    given = {"log_share": 0.1, "p99_ms": 50.0, "max_accuracy_drop": 0.02, "watch_every": None, "serve_port": 8080}
    found = settings(argparse.Namespace(serve="digits", **given))
    assert (found["log_share"], found["limits"], found["replay"]) == (0.1, {"p99_ms": 50}, {"max_accuracy_drop": 0.02})
    with pytest.raises(ConfigError, match=r"--log-share 2: .*at most 1"):
        settings(argparse.Namespace(serve="digits", **given | {"log_share": 2}))
    with pytest.raises(ConfigError, match=r"--false-alarms 0\.9: Input should be less than 0\.5"):
        settings(argparse.Namespace(serve="digits", **given, false_alarms=0.9))
