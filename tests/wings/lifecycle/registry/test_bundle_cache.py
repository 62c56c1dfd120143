"""`models:/NAME@ALIAS` as a folder on this machine, and servers that follow it."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from bundles import make_keys
from harness import command, until
from server_process import ServerProcess, serving

from flows.record.home import Home
from flows.tracking.server import URI_VARIABLE
from gauntlet.bundle.bundle import Bundle
from gauntlet.core.errors import ConfigError, StageError
from wings.lifecycle.registry import bundle_cache
from wings.lifecycle.registry.bundle_cache import ResolvedBundle, follow, resolve
from wings.lifecycle.registry.promote import PromotionRequest, promote

pytestmark = pytest.mark.slow


def challenge(home: Home, run: str) -> None:
    """Register a run as the challenger, which needs no replay."""
    promote(home, PromotionRequest(run, role="challenger"))


def stored_model(home: Home) -> Path:
    [path] = (home.root / "mlartifacts").rglob("model.onnx")
    return path


def test_alias_and_version_are_the_same_folder_which_is_downloaded_once(home: Home, run) -> None:
    bundle = run("run-1")
    challenge(home, "run-1")
    found = resolve(home, "models:/digits@challenger")
    assert (found.name, found.version, found.digest) == ("digits", "1", bundle.digest)
    assert Bundle.open(found.folder).digest == bundle.digest
    stored_model(home).unlink()
    assert resolve(home, "models:/digits/1") == found


def test_damaged_copy_is_downloaded_again_and_a_damaged_original_is_refused(home: Home, run) -> None:
    run("run-1")
    challenge(home, "run-1")
    model = resolve(home, "models:/digits@challenger").folder / "model.onnx"
    whole = model.read_bytes()
    model.write_bytes(whole[:-1])
    assert resolve(home, "models:/digits@challenger").folder == model.parent
    assert model.read_bytes() == whole
    model.write_bytes(whole[:-1])
    stored_model(home).write_bytes(whole[:-2])
    with pytest.raises(StageError, match=r"digits version 1: its files in the registry are damaged: model.onnx"):
        resolve(home, "models:/digits@challenger")
    assert not [path for path in (home.root / "bundles").iterdir() if path.name.startswith(".")]


def test_note_that_mlflow_adds_when_it_loads_the_version_is_no_damage(home: Home, run) -> None:
    run("run-1")
    challenge(home, "run-1")
    (stored_model(home).parent / "registered_model_meta").write_text("model_name: digits")
    assert list(Bundle.open(resolve(home, "models:/digits@challenger").folder).damage()) == []


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("models:/digits", "write models:/NAME@ALIAS"),
        ("models:/../x@champion", "write models:/NAME@ALIAS|not allowed"),
        ("models:/digits@champion", "no such version"),
        ("models:/digits@other", "no such version"),
        ("models:/digits/7", "no such version"),
        ("models:/nobody@champion", "no such version"),
    ],
)
def test_address_that_names_nothing_is_refused(home: Home, run, address: str, message: str) -> None:
    run("run-1")
    challenge(home, "run-1")
    with pytest.raises(ConfigError, match=message):
        resolve(home, address)


def test_follower_loads_every_new_version_and_survives_what_goes_wrong(home: Home, run) -> None:
    for number in (1, 2, 3):
        run(f"run-{number}", products=number)
    challenge(home, "run-1")
    first = resolve(home, "models:/digits@challenger")
    loaded, stop = list[str](), threading.Event()
    event = threading.Event()

    def load(found: ResolvedBundle) -> None:
        loaded.append(found.version)
        if loaded == ["2", "3"]:
            raise OSError(24, "Too many open files")
        event.set()
        if found.version == "2":
            raise StageError("not here")

    options = {"poll_s": 0.01, "known": first}
    thread = threading.Thread(target=follow, args=(home, "models:/digits@challenger", load, stop), kwargs=options)
    thread.start()
    try:
        for number in (2, 3):
            event.clear()
            challenge(home, f"run-{number}")
            assert event.wait(60)
    finally:
        stop.set()
        thread.join(60)
    assert loaded == ["2", "3", "3"]  # what is refused is not tried again, what failed is


def test_look_that_fails_does_not_count_as_one(home: Home, run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The age of the last look is a metric with an alert, so a server that follows no more is noticed."""
    run("run-1")
    challenge(home, "run-1")
    address, stop, looks = "models:/digits@challenger", threading.Event(), list[int]()
    known, answers = resolve(home, address), list[Exception | None]([None, StageError("away"), OSError(24, ""), None])

    def asked(*_: object) -> ResolvedBundle:
        if error := answers.pop(0):
            raise error
        if not answers:
            stop.set()
        return known

    monkeypatch.setattr(bundle_cache, "resolve", asked)
    follow(home, address, lambda _: None, stop, poll_s=0, known=known, on_look=lambda: looks.append(len(answers)))
    assert looks == [3, 0]


def test_refused_version_is_tried_again_when_the_alias_comes_back_to_it(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, refused = (ResolvedBundle("digits", version, version, tmp_path) for version in "12")
    stop, named, loaded = threading.Event(), [refused, refused, known, refused], list[str]()

    def asked(*_: object) -> ResolvedBundle:
        if len(named) == 1:
            stop.set()
        return named.pop(0)

    def load(found: ResolvedBundle) -> None:
        loaded.append(found.version)
        raise StageError("not here")

    monkeypatch.setattr(bundle_cache, "resolve", asked)
    follow(home, ALIAS, load, stop, poll_s=0, known=known)
    assert loaded == ["2", "2"]


ALIAS = "models:/digits@challenger"


def served(server: ServerProcess) -> str:
    return str(server.get("/v2/models/digits").json()["versions"][0])


def test_server_follows_the_alias_and_keeps_the_old_version_until_the_new_one_is_proven(
    home: Home, run: Callable[..., Bundle], tmp_path: Path
) -> None:
    first, second = run("run-1"), run("run-2", products=2)
    promote(home, PromotionRequest("run-1", role="challenger"))
    with serving(tmp_path, ALIAS) as server:
        assert first.digest.startswith(served(server))
        promote(home, PromotionRequest("run-2", role="challenger"))
        until(lambda: second.digest.startswith(served(server)), 400)
        assert server.metric("gauntlet_model_loads_total", model="digits", outcome="success") == 2
        assert server.metric("gauntlet_model_alias_age_seconds", model="digits") > 0


def test_alias_that_names_nothing_is_refused_before_the_server_starts(home: Home, tmp_path: Path) -> None:
    done = command(tmp_path, "serve", ALIAS, "--port", "0", GAUNTLET_HOME=str(home.root))
    assert done.returncode == 2
    assert "no such version" in done.stderr
    assert "gauntlet promote RUN --name digits" in done.stderr


def test_follower_asks_for_the_signatures_that_its_own_home_lists(
    home: Home, run: Callable[..., Bundle], tmp_path: Path
) -> None:
    bundle, follower = run("run-1"), tmp_path / "follower"
    challenge(home, "run-1")
    variables = {"GAUNTLET_HOME": str(follower), URI_VARIABLE: home.mlflow_uri}
    added = command(tmp_path, "trust", "add", str(make_keys(tmp_path)[1]), **variables)
    assert added.returncode == 0, added.stderr
    done = command(tmp_path, "serve", ALIAS, "--port", "0", **variables)
    assert (done.returncode, f"no signature by a key of {follower / 'trusted-keys.json'}" in done.stderr) == (1, True)
    with serving(tmp_path, ALIAS) as server:  # the other home lists no keys
        assert bundle.digest.startswith(served(server))


def test_server_waits_for_the_first_version_and_serves_it_without_a_restart(
    home: Home, run: Callable[..., Bundle], tmp_path: Path
) -> None:
    bundle = run("run-1")
    with serving(tmp_path, ALIAS, "--wait") as server:
        assert server.get("/v2/health/live").status == 200
        assert server.get("/v2/health/ready").status == 503
        assert "there is no bundle yet" in server.get("/v2/models/digits").error
        promote(home, PromotionRequest("run-1", role="challenger"))
        until(lambda: server.get("/v2/health/ready").status == 200, 400)
        assert bundle.digest.startswith(served(server))


@pytest.mark.parametrize("bundles", [["digits.zip"], [ALIAS, "digits.zip"]])
def test_server_waits_for_one_registered_model_only(tmp_path: Path, bundles: list[str]) -> None:
    done = command(tmp_path, "serve", *bundles, "--wait", "--port", "0")
    assert (done.returncode, "it needs one registered model, as models:/NAME@ALIAS" in done.stderr) == (2, True)
