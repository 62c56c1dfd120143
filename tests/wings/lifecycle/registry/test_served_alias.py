"""A server that serves an alias of the registry loads what the alias comes to name, without a restart."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from server_process import ServerProcess, serving

from flows.record.home import Home
from gauntlet.bundle.bundle import Bundle
from wings.lifecycle.registry.promote import PromotionRequest, promote

ALIAS = "models:/digits@challenger"


def served(server: ServerProcess) -> str:
    return str(server.get("/v2/models/digits").json()["versions"][0])


@pytest.mark.slow
def test_server_follows_the_alias_and_keeps_the_old_version_until_the_new_one_is_proven(
    home: Home, run: Callable[..., Bundle], tmp_path: Path
) -> None:
    first, second = run("run-1"), run("run-2", products=2)
    promote(home, PromotionRequest("run-1", role="challenger"))
    with serving(tmp_path, ALIAS) as server:
        assert first.digest.startswith(served(server))
        promote(home, PromotionRequest("run-2", role="challenger"))
        deadline = time.monotonic() + 400
        while not second.digest.startswith(served(server)):
            assert time.monotonic() < deadline
            time.sleep(0.5)
        assert server.metric("gauntlet_model_loads_total", model="digits", outcome="success") == 2
        assert server.metric("gauntlet_model_alias_age_seconds", model="digits") > 0


@pytest.mark.slow
def test_alias_that_names_nothing_is_refused_before_the_server_starts(home: Home, tmp_path: Path) -> None:
    from harness import command

    done = command(tmp_path, "serve", ALIAS, "--port", "0", GAUNTLET_HOME=str(home.root))
    assert done.returncode == 1
    assert "no such version" in done.stderr
    assert "gauntlet promote RUN --name digits" in done.stderr


@pytest.mark.slow
def test_server_waits_for_the_first_version_and_serves_it_without_a_restart(
    home: Home, run: Callable[..., Bundle], tmp_path: Path
) -> None:
    bundle = run("run-1")
    with serving(tmp_path, ALIAS, "--wait") as server:
        assert server.get("/v2/health/live").status == 200
        assert server.get("/v2/health/ready").status == 503
        assert "there is no bundle yet" in server.get("/v2/models/digits").error
        promote(home, PromotionRequest("run-1", role="challenger"))
        deadline = time.monotonic() + 400
        while server.get("/v2/health/ready").status != 200:
            assert time.monotonic() < deadline
            time.sleep(0.5)
        assert bundle.digest.startswith(served(server))


@pytest.mark.parametrize("bundles", [["digits.zip"], [ALIAS, "digits.zip"]])
def test_server_waits_for_one_registered_model_only(tmp_path: Path, bundles: list[str]) -> None:
    from harness import command

    done = command(tmp_path, "serve", *bundles, "--wait", "--port", "0")
    assert (done.returncode, "it needs one registered model, as models:/NAME@ALIAS" in done.stderr) == (2, True)
