from pathlib import Path

import needs
import pytest


@pytest.mark.parametrize("value", ["1", "true"])
def test_test_fails_in_ci_when_something_is_missing(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("CI", value)
    with pytest.raises(pytest.fail.Exception, match="no such tool; CI must install it"):
        needs.missing("no such tool")


@pytest.mark.parametrize("value", ["", "0", "false"])
def test_test_is_skipped_with_the_reason_outside_ci(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("CI", value)
    with pytest.raises(pytest.skip.Exception, match="no such tool"):
        needs.missing("no such tool")


def test_browser_that_is_not_installed_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("CI", "1")
    with pytest.raises(pytest.fail.Exception, match="chromium is not on the PATH"):
        needs.chromium()


def test_ci_runs_the_tests_of_the_readme_all_of_them_and_with_nothing_missing() -> None:
    project = Path(__file__).parents[1]
    lines = [line.partition(" #")[0] for line in (project / ".ci" / "run").read_text().splitlines()]
    everything, again = (line for line in lines if "make test" in line)
    assert lines.index("export CI=1") < lines.index("make check") < lines.index(everything)
    assert everything == "make test ARGS='-m \"slow or not slow\"' ||"
    assert again.split("make test ")[1].startswith('ARGS=\'-m "slow or not slow" --last-failed ')
    assert "--last-failed-no-failures none" in again  # a run that ended without a failed test has not passed
