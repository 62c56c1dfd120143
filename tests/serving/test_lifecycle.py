"""Load, swap, unload and stop: nothing that was admitted is lost."""

import asyncio
import os
import shutil
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from bundles import make_keys
from harness import called, command
from served_bundles import SIZE, brightness_bundle, spoil_golden_outputs
from server_process import ServerProcess, json_request, serving

from flows.servers.local_servers import launch, stop, wait_until_up
from flows.servers.ports import Port
from gauntlet.bundle.bundle import CONTRACT, MODEL, Bundle, archive, seal
from gauntlet.bundle.predictor import Predictor
from gauntlet.bundle.trust import TRUSTED_KEYS
from serving.errors import LoadFailed, NotReady
from serving.observations import Metrics
from serving.open_inference import binary_request
from serving.repository import Repository, Source
from serving.settings import Limits

pytestmark = pytest.mark.slow
ONE = {"image": np.ones((1, 1, SIZE, SIZE), np.float32)}
LOAD = "/v2/repository/models/brightness/load"


def replace(bundle: Path, other: Path) -> None:
    """Put another bundle in a bundle's place, as a deployment does: by renaming."""
    spare = bundle.with_name(f"{bundle.name}-old")
    bundle.rename(spare)
    shutil.copytree(other, bundle)
    shutil.rmtree(spare)


def version(server: ServerProcess) -> str:
    return str(server.get("/v2/models/brightness").json()["versions"][0])


def test_load_swaps_in_the_bundle_that_lies_there_now(tmp_path: Path) -> None:
    bundle, other = brightness_bundle(tmp_path / "b"), brightness_bundle(tmp_path / "o", bias=9)
    with serving(tmp_path, bundle) as server:
        before = version(server)
        [first] = server.post("/v2/models/brightness/infer", json_request(ONE)).json()["outputs"]
        replace(bundle, other)
        assert server.post(LOAD).status == 200
        [second] = server.post("/v2/models/brightness/infer", json_request(ONE)).json()["outputs"]
        assert version(server) != before
        assert np.argmax(first["data"]) == 2
        assert np.argmax(second["data"]) == 1
        assert server.metric("gauntlet_model_loads_total", model="brightness", outcome="success") == 2


def test_server_takes_over_an_open_socket(tmp_path: Path) -> None:
    port = Port.take()
    command = [sys.executable, "-m", "flows.cli.main", "serve", str(brightness_bundle(tmp_path / "b")), "--fd", "0"]
    process = launch(command, dict(os.environ), tmp_path / "log", port.listener())
    try:
        wait_until_up(process, f"{port.address}/v2/health/ready", "gauntlet serve", tmp_path / "log")
        assert port.address in (tmp_path / "log").read_text()
    finally:
        stop(process)


def damaged(folder: Path) -> str:
    content = bytearray((folder / MODEL).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / MODEL).write_bytes(content)
    return "model.onnx: changed"


def other_outputs(folder: Path) -> str:
    spoil_golden_outputs(folder)
    return "not its golden outputs on this processor"


def unreadable_model(folder: Path) -> str:
    (folder / MODEL).write_bytes(b"no model")
    seal(folder)
    return "refuses the model"


def no_bundle(folder: Path) -> str:
    shutil.rmtree(folder)
    return "no such file or folder"


def no_latency(folder: Path) -> str:
    contract = (folder / CONTRACT).read_text().replace('"latencies": []', '"latencies": [{"batch": 1, "median_ms": 0}]')
    (folder / CONTRACT).write_text(contract)
    seal(folder)
    return "contract.json cannot be read"


def other_contract(folder: Path) -> str:
    contract = (folder / CONTRACT).read_text().replace('"name": "y"', '"name": "z"')
    (folder / CONTRACT).write_text(contract)
    seal(folder)
    return "its contract is of another model"


FAULTS = [damaged, other_outputs, unreadable_model, no_latency, other_contract, no_bundle]


def test_server_does_not_start_with_a_bundle_that_is_damaged_or_not_signed_as_asked(tmp_path: Path) -> None:
    bundle, keys = brightness_bundle(tmp_path / "b"), {TRUSTED_KEYS: str(make_keys(tmp_path)[1])}
    unsigned = "no signature by a key of", command(tmp_path, "serve", str(bundle), **keys)
    broken = damaged(bundle), command(tmp_path, "serve", str(bundle))
    missing = no_bundle(bundle), command(tmp_path, "serve", str(bundle))
    for (told, done), code in ((unsigned, 1), (broken, 1), (missing, 2)):
        assert done.returncode == code
        [line] = done.stderr.splitlines()
        assert line.startswith("gauntlet: ")
        assert told in line


def test_running_server_obeys_keys_that_are_added_and_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GAUNTLET_HOME", str(tmp_path / ".gauntlet"))
    with serving(tmp_path, brightness_bundle(tmp_path / "b")) as server:
        added = called(tmp_path, "trust", "add", str(make_keys(tmp_path)[1])).stdout.splitlines()[1]
        refused = server.post(LOAD)
        assert (refused.status, "no signature by a key of" in refused.error) == (400, True)
        assert called(tmp_path, "trust", "remove", added[:16]).returncode == 0
        assert server.post(LOAD).status == 200


def test_failed_load_keeps_the_old_version_and_says_why(tmp_path: Path) -> None:
    bundle = brightness_bundle(tmp_path / "b")
    with serving(tmp_path, bundle) as server:
        before = version(server)
        for spoil in FAULTS:
            shutil.rmtree(bundle, ignore_errors=True)
            told = spoil(brightness_bundle(bundle))
            response = server.post(LOAD)
            assert response.status == 400
            assert told in response.error
            [entry] = server.post("/v2/repository/index").json()
            assert entry["state"] == "READY"
            assert told in entry["reason"]
            assert version(server) == before
        assert server.post("/v2/models/brightness/infer", json_request(ONE)).status == 200


@pytest.mark.parametrize("other", ["bundle", "fault"])
def test_bundle_that_changes_while_it_is_loaded_or_a_fault_of_ours_leaves_all_as_it_was(
    tmp_path: Path, other: str
) -> None:
    one = brightness_bundle(tmp_path / "repository" / "one")
    brightness_bundle(tmp_path / "repository" / "two")

    def opened(bundle: Bundle) -> Predictor:
        if bundle.folder == one and other == "fault":
            raise ZeroDivisionError
        if bundle.folder == one:
            replace(one, brightness_bundle(tmp_path / "other", bias=9))
        return Predictor(bundle)

    async def scenario() -> None:
        repository = Repository(Metrics(), Limits(), folder=tmp_path / "repository", opened=opened)
        await repository.load("two")
        with pytest.raises(ZeroDivisionError if other == "fault" else LoadFailed, match=r"^$|replaced while it was"):
            await repository.load("one")
        assert (repository.entries()["one"].state, repository.ready) == ("UNAVAILABLE", True)
        await repository.close()

    asyncio.run(scenario())


def test_unloaded_model_is_not_ready_until_it_is_loaded_again(tmp_path: Path) -> None:
    with serving(tmp_path, brightness_bundle(tmp_path / "b")) as server:
        assert server.post("/v2/repository/models/brightness/unload").status == 200
        response = server.post("/v2/models/brightness/infer", json_request(ONE))
        assert (response.status, response.error) == (503, "model 'brightness' is not loaded: unloaded")
        assert server.post("/v2/repository/index", {"ready": True}).json() == []
        assert server.post(LOAD).status == 200
        assert server.post("/v2/models/brightness/infer", json_request(ONE)).status == 200


def test_bundles_of_the_operators_folder_are_loaded_by_name(tmp_path: Path) -> None:
    folder = tmp_path / "repository"
    brightness_bundle(folder / "one")
    archive(brightness_bundle(tmp_path / "two"), folder / "two.zip")
    (folder / "notes.txt").write_text("no bundle")
    with serving(tmp_path, "--repository", folder) as server:
        index = server.post("/v2/repository/index").json()
        assert [(entry["name"], entry["state"]) for entry in index] == [("one", "UNAVAILABLE"), ("two", "UNAVAILABLE")]
        assert server.post("/v2/models/two/infer", json_request(ONE)).status == 503
        assert server.post("/v2/repository/models/two/load").status == 200
        assert server.post("/v2/models/two/infer", json_request(ONE)).status == 200
        shutil.rmtree(folder)
        assert server.post("/v2/models/three/infer", json_request(ONE)).status == 404
        assert server.post("/v2/models/two/infer", json_request(ONE)).status == 200


def test_two_models_of_one_name_are_refused(tmp_path: Path) -> None:
    names = [str(brightness_bundle(tmp_path / name)) for name in "ab"]
    done = command(tmp_path, "serve", *names)
    assert done.returncode == 1
    assert "two bundles are named 'brightness'" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_stop_finishes_what_was_admitted_and_exits_with_0(tmp_path: Path, number: signal.Signals) -> None:
    bundle = brightness_bundle(tmp_path / "b", busy=100)
    body, headers = binary_request({"image": np.ones((64, 1, SIZE, SIZE), np.float32)})
    with serving(tmp_path, bundle, "--deadline-ms", "60000") as server, ThreadPoolExecutor(8) as pool:
        work = [pool.submit(server.post, "/v2/models/brightness/infer", body, **headers) for _ in range(8)]
        while server.metric("gauntlet_batches_total") + 1 + server.metric("gauntlet_pending_requests") < 8:
            time.sleep(0.01)  # one is being computed, the others wait
        assert server.stop(number) == 0
        assert [future.result().status for future in work] == [200] * 8
    assert server.log_entries()[-1]["message"] == "stopped"


@pytest.mark.parametrize("swaps", [6, pytest.param(100, marks=pytest.mark.nightly)])
def test_swap_under_load_loses_no_request(tmp_path: Path, swaps: int) -> None:
    """Swap while four clients ask without a pause; each response must be that of one of the two versions."""
    bundle, other = brightness_bundle(tmp_path / "b"), brightness_bundle(tmp_path / "o", bias=9)
    again = shutil.copytree(bundle, tmp_path / "again")
    body = json_request(ONE)
    statuses: list[int] = []
    seen: set[int] = set()
    done = threading.Event()

    def ask(server: ServerProcess) -> None:
        while not done.is_set():
            response = server.post("/v2/models/brightness/infer", body)
            statuses.append(response.status)
            if response.status == 200:
                seen.add(int(np.argmax(response.json()["outputs"][0]["data"])))

    with serving(tmp_path, bundle, "--deadline-ms", "30000") as server:
        clients = [threading.Thread(target=ask, args=(server,)) for _ in range(4)]
        for client in clients:
            client.start()
        for turn in range(swaps):
            replace(bundle, (other, again)[turn % 2])
            assert server.post(LOAD).status == 200
        done.set()
        for client in clients:
            client.join()
    assert len(statuses) > swaps
    assert set(statuses) == {200}
    assert seen == {1, 2}


def test_expected_model_keeps_the_server_from_being_ready_until_it_is_loaded(tmp_path: Path) -> None:
    repository = Repository(Metrics(), Limits())
    repository.expect(Source(lambda: tmp_path / "b"), "brightness")
    assert not repository.ready
    with pytest.raises(NotReady, match="there is no bundle yet"):
        repository.model("brightness")
    with pytest.raises(LoadFailed):
        asyncio.run(repository.load("brightness"))
    assert not repository.ready
    brightness_bundle(tmp_path / "b")
    model = asyncio.run(repository.load("brightness"))
    assert repository.ready
    asyncio.run(repository.unload("brightness"))
    assert not repository.ready  # nothing can answer
    model.batcher.close()


def test_canary_that_has_ended_gets_no_requests_although_the_champion_cannot_be_opened_again(tmp_path: Path) -> None:
    champion, canary = brightness_bundle(tmp_path / "b"), brightness_bundle(tmp_path / "c", bias=9)
    shares = [(canary, 1.0)]

    async def scenario() -> None:
        repository = Repository(Metrics(), Limits())
        first = repository.start(Source(lambda: champion, lambda: next(iter(shares), None)))
        assert repository.model("brightness", request_id="r").version == Bundle.open(canary).digest[:12]
        shares.clear()
        (champion / MODEL).write_bytes(b"damaged")
        with pytest.raises(LoadFailed):
            await repository.load("brightness")
        assert repository.model("brightness", request_id="r") is first
        await repository.close()

    asyncio.run(scenario())
