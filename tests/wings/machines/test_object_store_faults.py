"""The object store under violence and with wrong settings: one line with the fix, and nothing half."""

import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from azure_server import CONTAINER
from object_server import BUCKET, MIB, SECRET, ObjectServer, machine, made

from gauntlet.core.artifact import Store, open_store, sha256_of
from gauntlet.core.errors import ConfigError, StoreRefused, StoreUnavailable
from wings.machines.library import object_store, object_store_client

from .conftest import reached

BIG = """
import sys
from pathlib import Path
from gauntlet.core.artifact import open_store

def peak_kb():  # of this program alone; getrusage counts what its parent had when it started it
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0])

folder, address, size = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
with (folder / "model.onnx").open("wb") as file:
    file.truncate(size)
    file.seek(size // 2)
    file.write(b"the middle")
artifact = open_store(folder / "here", address).put(folder / "model.onnx")
fetched = open_store(folder / "there", address).path(artifact)
print(fetched.stat().st_size, peak_kb())
"""


@pytest.mark.nightly
def test_two_machines_put_the_same_object_at_once(server: ObjectServer, tmp_path: Path) -> None:
    content = os.urandom(24 * MIB)
    put = (
        "import sys; from pathlib import Path; from gauntlet.core.artifact import open_store\n"
        "sys.stdin.readline(); print(open_store(Path(sys.argv[1]), sys.argv[2]).put(Path(sys.argv[3])).path)"
    )
    address, processes = f"s3://{BUCKET}/both", []
    for name in ("a", "b"):
        file = made(tmp_path / f"{name}-in", "m", content)
        command = [sys.executable, "-c", put, str(tmp_path / name), address, str(file)]
        processes.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    paths = {process.communicate(timeout=120)[0].strip() for process in processes}
    assert [process.returncode for process in processes] == [0, 0]
    third = machine(address, tmp_path / "c")
    assert {f"store/{path}" for path in paths} == {one["path"] for one in third.objects("store")}
    artifact = Store(tmp_path / "plain").put(made(tmp_path, "m", content))
    assert sha256_of([third.path(artifact)]) == artifact.sha256


@pytest.mark.nightly
def test_put_waits_for_a_server_that_was_killed(
    own_server: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, content, said = machine(f"s3://{BUCKET}/killed", tmp_path / "a"), os.urandom(40 * MIB), []
    progress = threading.Event()

    def put() -> None:
        store.put(made(tmp_path, "m", content))
        progress.set()

    def warn(text: str, *words: object) -> None:
        said.append(text % words)
        progress.set()

    monkeypatch.setattr(object_store_client.log, "warning", warn)
    for _ in range(10):  # until one is interrupted
        begun, putting = len(own_server.requests("POST")), threading.Thread(target=put)
        putting.start()
        while len(own_server.requests("POST")) == begun:
            assert putting.is_alive()
        own_server.kill()
        assert progress.wait(60)
        own_server.start()
        putting.join(120)
        if said:
            break
        progress.clear()  # it was done before; what the server held is lost, so the next put sends it again
    assert "does not respond (" in said[0]
    artifact = Store(tmp_path / "plain").put(made(tmp_path, "m", content))
    assert machine(f"s3://{BUCKET}/killed", tmp_path / "b").path(artifact).read_bytes() == content


@pytest.mark.nightly
def test_put_that_is_killed_leaves_nothing_half(server: ObjectServer, tmp_path: Path) -> None:
    put = (
        "import sys; from pathlib import Path; from gauntlet.core.artifact import open_store\n"
        "open_store(Path(sys.argv[1]), sys.argv[2]).put(Path(sys.argv[3]))"
    )
    address, content = f"s3://{BUCKET}/client", os.urandom(40 * MIB)
    begun = len(server.requests("POST"))
    file = made(tmp_path / "in", "m", content)
    process = subprocess.Popen([sys.executable, "-c", put, str(tmp_path / "a"), address, str(file)])
    while len(server.requests("POST")) == begun:
        assert process.poll() is None
    process.kill()
    process.wait()
    other = machine(address, tmp_path / "b")
    assert {one["size"] for one in other.objects("store")} <= {len(content)}
    artifact = machine(address, tmp_path / "a").put(made(tmp_path / "in", "m", content))
    assert other.path(artifact).read_bytes() == content


@pytest.mark.usefixtures("no_server")
def test_server_that_cannot_be_reached_is_named_with_the_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_store, "FIRST_PATIENCE_S", 0.0)
    store = machine(f"s3://{BUCKET}/x", tmp_path)
    message = rf"s3://{BUCKET}/x did not respond for 0 s .*Fix: start the server"
    with pytest.raises(StoreUnavailable, match=message) as error, store.in_use("run"):
        pass
    assert SECRET not in str(error.value)


AZURE = f"az://{CONTAINER}/x"
HTTP = "Fix: https://, or AWS_ALLOW_HTTP=true or AZURE_ALLOW_HTTP=true"


@pytest.mark.parametrize(
    ("address", "changed", "message"),
    [
        ("s3://no-such/x", {}, "GAUNTLET_STORE=s3://no-such/x: no such bucket. Fix: create it"),
        (f"s3://{BUCKET}/x", {"AWS_ALLOW_HTTP": ""}, f"the address of the server is not allowed. {HTTP}"),
        *(
            pytest.param(*case, marks=pytest.mark.nightly)
            for case in (
                ("az://no-such/x", {}, "GAUNTLET_STORE=az://no-such/x: no such bucket. Fix: create it"),
                (AZURE, {"AZURE_ALLOW_HTTP": ""}, HTTP),
                (AZURE, {"AZURE_STORAGE_ACCOUNT_KEY": "b3RoZXI="}, "no permission"),
                (AZURE, {"AZURE_STORAGE_ACCOUNT_KEY": "other!"}, "Invalid Access Key"),
                (AZURE, {"AZURE_STORAGE_ACCOUNT_NAME": ""}, "Account must be specified"),
            )
        ),
    ],
)
def test_wrong_settings_are_refused_at_once(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    address: str,
    changed: dict[str, str],
    message: str,
) -> None:
    request.getfixturevalue("server" if address.startswith("s3") else "azure_client")
    for name, value in changed.items():
        monkeypatch.setenv(name, value) if value else monkeypatch.delenv(name)
    with pytest.raises(ConfigError) as error, machine(address, tmp_path).in_use("run"):
        pass
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("status", [401, 403])
def test_missing_permission_is_named_with_the_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    class Refusing(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_error(status)

    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as refusing:
        threading.Thread(target=refusing.serve_forever, daemon=True).start()
        for _ in reached(ObjectServer(refusing.server_port, tmp_path), monkeypatch):
            with pytest.raises(ConfigError, match=r"no permission .*Fix: allow these credentials to list, read"):
                machine(f"s3://{BUCKET}/x", tmp_path).publish("results/a.json", "{}")
        refusing.shutdown()


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("bucket/prefix", "GAUNTLET_STORE=bucket/prefix: not the address of a store"),
        ("ftp://bucket", "s3://, gs://, az://, file://, memory://"),
        ("s3://", "not the address of a store"),
        ("s3://[bucket/prefix", "GAUNTLET_STORE=s3://[bucket/prefix: not the address of a store"),
        ("s3://name:hidden@bucket/prefix", "an address must not hold credentials. Fix: set s3://BUCKET/PREFIX"),
        ("az://container/prefix?sig=hidden", "an address must not hold credentials"),
    ],
)
def test_address_that_is_none_is_refused_and_its_secrets_are_not_repeated(
    tmp_path: Path, address: str, message: str
) -> None:
    with pytest.raises(ConfigError) as error:
        open_store(tmp_path, address)
    assert message in str(error.value)
    assert "hidden" not in str(error.value)


def test_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    address = f"file://{made(tmp_path, 'file')}/store"
    with pytest.raises(ConfigError, match=rf"GAUNTLET_STORE={address}: Not a directory"):
        machine(address, tmp_path).publish("results/a.json", "{}")


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        ("Permission denied (os error 13)", r"nothing can be written there .*/results: Permission denied.* Fix: allow"),
        ("Read-only file system (os error 30)", "nothing can be written there"),
        ("No space left on device (os error 28)", "its disk is full. Fix: free space there, for example with gauntlet"),
    ],
)
def test_folder_that_takes_nothing_is_not_waited_for(reason: str, message: str) -> None:
    from obstore.exceptions import GenericError

    def put() -> None:
        raise GenericError(f"Generic LocalFileSystem error: Unable to create dir /mounted/results: {reason}")

    with pytest.raises(StoreRefused, match=rf"GAUNTLET_STORE=file:///mounted: {message}"):
        object_store_client.patiently("file:///mounted", put, patience_s=3600.0)


@pytest.mark.nightly
@pytest.mark.parametrize(("kind", "size"), [("az", 2_100_000_000), ("s3", 400_000_000), ("file", 400_000_000)])
@pytest.mark.usefixtures("azure_client", "server")
def test_large_model_passes_through_with_little_memory(tmp_path: Path, kind: str, size: int) -> None:
    address = {"az": f"az://{CONTAINER}/large", "s3": f"s3://{BUCKET}/large", "file": f"file://{tmp_path}/mounted"}
    words = [sys.executable, "-c", BIG, tmp_path, address[kind], str(size)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    fetched, peak_kb = map(int, done.stdout.split())
    assert fetched == size
    assert peak_kb < 300_000


def test_missing_package_is_named_with_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(ConfigError, match=r"needs obstore. Fix: make store"):
        open_store(tmp_path, "s3://bucket/prefix")


@pytest.mark.usefixtures("no_server")
def test_server_that_was_waited_for_in_vain_is_not_waited_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = machine(f"s3://{BUCKET}/lost", tmp_path)
    for patience_s in (0.0, 3600.0):  # the second would last until the end of the test's time
        monkeypatch.setattr(object_store_client, "PATIENCE_S", patience_s)
        with pytest.raises(StoreUnavailable, match="did not respond for 0 s"):
            store.publish("results/a.json", "{}")


def test_put_whose_parts_the_server_has_lost_begins_again(
    server: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import obstore

    sent, send = [], obstore.put

    def lose_the_first(*words: object, **options: object) -> object:
        sent.append(words)
        if len(sent) == 1:
            raise FileNotFoundError("Server returned non-2xx status code: 404 Not Found: NoSuchUpload")
        return send(*words, **options)

    monkeypatch.setattr(obstore, "put", lose_the_first)
    artifact = machine(f"s3://{BUCKET}/lost-parts", tmp_path / "a").put(made(tmp_path))
    assert "does not respond (the server has lost the parts that it had)" in caplog.text
    assert machine(f"s3://{BUCKET}/lost-parts", tmp_path / "b").path(artifact).read_bytes() == b"weights"
