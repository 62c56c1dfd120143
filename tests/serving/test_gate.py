"""Who may use a server: loopback, tokens, hosts, origins, and no paths."""

import asyncio
import random
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from served_bundles import brightness_bundle
from server_process import ServerProcess, serving
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from flows.cli.main import main
from gauntlet.core.errors import ConfigError
from serving.gate import Gate
from serving.observations import Metrics
from serving.repository import Repository
from serving.served_model import ServedModel
from serving.server import ServerConfig, _listener, make_app
from serving.settings import Limits

TOKEN = "0123456789abcdef0123"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return brightness_bundle(tmp_path_factory.mktemp("bundle") / "b", latencies=[(1, 1.0)])


@pytest.fixture(scope="module")
def server(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(tmp_path_factory.mktemp("open"), bundle) as running:
        yield running


@pytest.fixture(scope="module")
def guarded(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("guarded")
    (folder / "token").write_text(f"{TOKEN}\n")
    with serving(folder, bundle, "--host", "0.0.0.0", "--token-file", folder / "token") as running:
        yield running


@pytest.mark.parametrize("path", ["/v2", "/v2/models/brightness", "/metrics", "/docs", "/openapi.json"])
def test_token_is_needed_and_compared_whole(guarded: ServerProcess, path: str) -> None:
    for wrong in ({}, {"authorization": "Bearer no"}, {"authorization": TOKEN}, {"authorization": f"Bearer {TOKEN}x"}):
        response = guarded.get(path, **wrong)
        assert response.status == 401
        assert response.headers["www-authenticate"] == "Bearer"
        assert TOKEN not in response.error
    assert guarded.get(path, authorization=f"Bearer {TOKEN}").status == 200


def test_page_and_health_need_no_token_and_none_is_logged(guarded: ServerProcess) -> None:
    for path in ("/", "/page.js", "/page.css", "/v2/health/live", "/v2/health/ready"):
        assert guarded.get(path).status == 200
    assert b'<link rel="icon" href="data:,">' in guarded.get("/").body  # else a browser asks for /favicon.ico
    guarded.get("/v2", authorization=f"Bearer {TOKEN}")
    assert TOKEN not in guarded.logs.read_text()


@pytest.mark.parametrize(
    "host",
    ["attacker.example:80", "", "[", "[::1", "localhost.attacker.example", "127.0.0.1.example:80", "a@localhost"],
)
def test_another_name_for_this_machine_is_refused_without_a_token(server: ServerProcess, host: str) -> None:
    assert server.get("/v2", host="localhost:80").status == 200
    refused = server.get("/v2", host=host)
    assert (refused.status, "localhost" in refused.error) == (403, True)
    assert server.get("/v2", origin=f"http://{host}").status == 403


def sent_by(app: ASGIApp, method: str, path: str, headers: list[tuple[bytes, bytes]]) -> list[Message]:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "http.request"}

    scope = {"type": "http", "method": method, "path": path, "query_string": b"", "headers": headers}
    asyncio.run(app(scope, receive, send))
    return sent


@pytest.mark.parametrize(("method", "path"), [("GET", "/v2/health/ready"), ("POST", "/v2/models/m/infer")])
def test_fault_of_ours_has_status_500_and_names_the_request(
    caplog: pytest.LogCaptureFixture, method: str, path: str
) -> None:
    class Broken(Repository):
        @property
        def ready(self) -> bool:
            raise RuntimeError("secret of the inside")

        def model(self, name: str, version: str | None = None, request_id: str = "") -> ServedModel:
            raise RuntimeError("secret of the inside")

    headers = [(b"host", b"localhost:80"), (b"x-request-id", b"mine-2")]
    sent = sent_by(make_app(Broken(Metrics(), Limits())), method, path, headers)
    assert [message.get("status") for message in sent] == [500, None]
    assert sent[1]["body"] == b'{"error":"internal error in request mine-2"}'
    assert dict(sent[0]["headers"])[b"content-length"] == b"%d" % len(sent[1]["body"])
    assert "secret of the inside" in caplog.text


def test_ids_of_requests_cannot_be_told_in_advance() -> None:
    """Whoever knows the id of a request can send its label."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    random.seed(7)
    request_id = dict(sent_by(Gate(app, Metrics()), "GET", "/", [])[0]["headers"])[b"x-request-id"].decode()
    assert len(request_id) == 32
    assert request_id != f"{random.Random(7).getrandbits(128):032x}"


def test_id_with_other_characters_than_ascii_is_replaced(server: ServerProcess) -> None:
    """It would come back, and be logged, as other characters, so labels would not find its request."""
    assert re.fullmatch("[0-9a-f]{32}", server.get("/v2", x_request_id="fünf").headers["x-request-id"])


def test_page_of_another_origin_can_change_nothing(server: ServerProcess) -> None:
    path = "/v2/repository/models/brightness/unload"
    assert server.post(path, "{}", origin="https://attacker.example").status == 403
    assert server.get("/v2/models/brightness/ready").status == 200
    assert {server.get(path).headers["x-frame-options"] for path in ("/", "/docs")} == {"DENY"}  # nor get a click


@pytest.mark.parametrize("name", ["..%2f..%2fetc", "%2fetc%2fpasswd", "b", "."])
def test_no_path_of_a_request_is_opened(server: ServerProcess, name: str) -> None:
    assert server.post(f"/v2/repository/models/{name}/load", "{}").status == 404


def test_load_takes_no_settings_from_a_client(server: ServerProcess) -> None:
    response = server.post("/v2/repository/models/brightness/load", {"parameters": {"file:1/model.onnx": "AAAA"}})
    assert response.status == 400
    assert "the operator alone" in response.error


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "nothing to serve"),
        (["a", "b", "--name", "x"], "it names one bundle, and 2 are given"),
        (["--repository", "missing"], "no such folder"),
        (["a", "--token-file", "missing"], "missing: no such file"),
        (["a", "--token-file", "short"], "--token-file short, line 1: a token has at least 16"),
        (["a", "--token-file", "rights"], "rights, line 2: 'read' is no right; allowed are infer, feedback"),
        (["a", "--token-file", "none"], "--token-file none: it has no token"),
        (["a", "--tls-cert", "short"], "--tls-cert and --tls-key: one is given"),
        (["a", "--tls-cert", "short", "--tls-key", "short"], "not a certificate and its key in PEM"),
        (["a", "--host", "0.0.0.0"], "--host 0.0.0.0: others can reach it"),
        (["a", "--host", "::"], "--host ::: others can reach it"),
        (["a", "--host", "example.org"], "--token-file"),
        (["a", "--deadline-ms", "0"], "--deadline-ms 0.0: Input should be greater than 0"),
        (["a", "--deadline-ms", "inf"], "--deadline-ms inf: Input should be a finite number"),
        (["a", "--max-body-mb", "inf"], "--max-body-mb inf: Input should be a finite number"),
        (["a", "--port", "99999"], "--port 99999: allowed are 1 to 65535"),
        (["a", "--fd", "999"], "--fd 999: Bad file descriptor; expected a TCP socket that listens"),
    ],
)
def test_wrong_arguments_are_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "short").write_text("short")
    (tmp_path / "rights").write_text(f"# clients\n{TOKEN} read\n")
    (tmp_path / "none").write_text("# nobody yet\n")
    assert main(["serve", *words]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert told in line


@pytest.mark.parametrize(
    ("host", "listens", "told"),
    [("127.0.0.1", False, "expected a TCP socket that listens"), ("0.0.0.0", True, "--host 0.0.0.0: others can reach")],
)
def test_open_socket_is_refused_where_it_does_not_listen_or_others_can_reach_it(
    capsys: pytest.CaptureFixture[str], host: str, listens: bool, told: str
) -> None:
    inherited = socket.socket()
    inherited.bind((host, 0))
    if listens:
        inherited.listen()
    assert main(["serve", "a", "--fd", str(inherited.detach())]) == 2
    assert told in capsys.readouterr().err


def test_token_may_come_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["serve", str(tmp_path / "missing.zip"), "--host", "0.0.0.0", "--port", "0"]
    monkeypatch.setenv("GAUNTLET_TOKEN", "short")
    assert main(arguments) == 2
    assert "GAUNTLET_TOKEN, line 1: a token has at least 16" in capsys.readouterr().err
    monkeypatch.setenv("GAUNTLET_TOKEN", "x" * 16)
    assert main(arguments) != 0
    assert "missing.zip" in capsys.readouterr().err  # the host is accepted, so the bundle is looked for


def test_address_that_is_taken_is_refused_with_what_to_name() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(ConfigError, match=r"Fix: .* --host and --port"),
    ):
        _listener(ServerConfig(port=taken.getsockname()[1]))
