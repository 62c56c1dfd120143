"""The options of a served champion that `gauntlet up` has."""

import argparse
import sys
from pathlib import Path

import pytest
from harness import command

from gauntlet.core.errors import ConfigError
from wings.lifecycle.served_champion import require_same, settings

HIDDEN = dict.fromkeys(("PREFECT_API_URL", "PREFECT_API_AUTH_STRING", "PREFECT_HOME", "MLFLOW_TRACKING_URI"), "")


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
    assert found is not None
    assert (found["log_share"], found["limits"], found["replay"]) == (0.1, {"p99_ms": 50}, {"max_accuracy_drop": 0.02})
    with pytest.raises(ConfigError, match=r"--log-share 2: .*at most 1"):
        settings(argparse.Namespace(serve="digits", **given | {"log_share": 2}))
    with pytest.raises(ConfigError, match=r"--false-alarms 0\.9: Input should be less than 0\.5"):
        settings(argparse.Namespace(serve="digits", **given, false_alarms=0.9))
