"""Tokens with rights of their own, which change without a restart, and TLS."""

import ssl
import urllib.request
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from served_bundles import brightness_bundle
from server_process import serving, wait_until

from gauntlet.bundle.bundle import Bundle
from gauntlet.core.errors import ConfigError
from serving.errors import NotAllowed, NoToken
from serving.serve_command import _load
from serving.server import ServerConfig
from serving.tokens import RIGHTS, Tokens
from wings.lifecycle.library.log_reader import RequestLogReader
from wings.lifecycle.library.monitoring.features import feature_names
from wings.lifecycle.library.monitoring.monitor_history import MonitorHistory

NAMES = ("everything", *RIGHTS)
TOKENS = {name: name.ljust(20, "0") for name in NAMES}
ROUTES = {
    "infer": ("POST", "/v2/models/brightness/infer"),
    "feedback": ("POST", "/v2/models/brightness/feedback"),
    "operate": ("POST", "/v2/repository/models/brightness/unload"),
    "metrics": ("GET", "/metrics"),
}


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return brightness_bundle(tmp_path / "b", latencies=[(1, 1.0)])


def token_file(path: Path) -> Path:
    """Write a token of each right, and one of all."""
    path.write_text("".join(f"{token} {name if name in RIGHTS else ''}\n" for name, token in TOKENS.items()))
    return path


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("right", RIGHTS)
def test_token_does_what_its_rights_say_and_nothing_else(tmp_path: Path, name: str, right: str) -> None:
    tokens = Tokens.read(token_file(tmp_path / "tokens"))
    method, path = ROUTES[right]
    refused = pytest.raises(NotAllowed, match=f"has the rights {name}; .* needs {right}")
    with nullcontext() if name in (right, "everything") else refused:
        tokens.require_right(f"Bearer {TOKENS[name]}", method, path)
    tokens.require_right(f"Bearer {TOKENS[name]}", "GET", "/v2/models/brightness")


def test_client_cannot_unload_a_model_and_an_operator_leaves_the_server_not_ready(tmp_path: Path, bundle: Path) -> None:
    unload = ROUTES["operate"][1]
    with serving(tmp_path, bundle, "--token-file", token_file(tmp_path / "tokens")) as server:
        for path in (unload, f"{unload}%0A"):  # a route's pattern takes a line feed at its end
            refused = server.post(path, "{}", authorization=f"Bearer {TOKENS['infer']}")
            assert (refused.status, "needs operate" in refused.error) == (403, True)
        assert server.request("HEAD", "/v2/health/ready").status == 200
        assert server.post(unload, "{}", authorization=f"Bearer {TOKENS['operate']}").status == 200
        assert (server.get("/v2/health/ready").status, server.get("/v2/health/live").status) == (503, 200)


def test_client_labels_its_own_requests_and_nobody_elses(tmp_path: Path, bundle: Path) -> None:
    file, names = tmp_path / "tokens", ("shop", "bank", "desk")
    rights = ("infer feedback client:shop", "client:bank infer, feedback", "feedback")
    file.write_text("".join(f"{name.ljust(20, '0')} {words}\n" for name, words in zip(names, rights, strict=True)))
    image = {"name": "image", "shape": [1, 1, 8, 8], "datatype": "FP32", "data": [0.5] * 64}
    with serving(tmp_path, bundle, "--token-file", file, "--request-log", tmp_path / "log") as server:
        tokens = {name: f"Bearer {name.ljust(20, '0')}" for name in names}
        asked = {"authorization": tokens["shop"], "x-request-id": "one"}
        assert server.post(ROUTES["infer"][1], {"inputs": [image]}, **asked).status == 200
        for name, label in (("bank", 0), ("shop", 1), ("desk", 2)):
            labels = {"feedback": [{"request_id": "one", "labels": [label]}]}
            assert server.post(ROUTES["feedback"][1], labels, authorization=tokens[name]).status == 202
        reader, opened = RequestLogReader(tmp_path / "log"), Bundle.open(bundle)
        wait_until(lambda: list(reader.feedback()), lambda entries: len(entries) == 3)
    (request,) = reader.requests(opened.digest[:12])
    expected = [("bank/one", (0,)), ("shop/one", (1,)), ("one", (2,))]
    assert [(label.request_id, label.labels) for label in reader.feedback()] == expected
    assert request.request_id == "shop/one"
    history = MonitorHistory.empty(len(feature_names(opened.contract.signature)))
    read = history.updated(reader, opened.digest[:12], opened.contract.signature)
    assert (read.labels.tolist(), read.ignored) == ([1], 2)  # the bank's, and the desk's, which came second


@pytest.mark.parametrize("words", ["client:a client:b", "client:", "client:a/b"])
def test_client_without_one_plain_name_is_refused(words: str) -> None:
    with pytest.raises(ConfigError, match="line 1"):
        Tokens(f"{'x' * 20} {words}", "--token-file tokens")


def test_tokens_change_without_a_restart_and_a_damaged_file_changes_nothing(tmp_path: Path) -> None:
    file = token_file(tmp_path / "tokens")
    tokens = Tokens.read(file)
    file.write_text("another-token-0123 infer\n")
    tokens.require_right("Bearer another-token-0123", *ROUTES["infer"])
    with pytest.raises(NoToken):
        tokens.require_right(f"Bearer {TOKENS['infer']}", *ROUTES["infer"])
    for damage in ("short", "", None):
        file.unlink() if damage is None else file.write_text(damage)
        tokens.require_right("Bearer another-token-0123", *ROUTES["infer"])


def certificate(folder: Path) -> tuple[Path, Path]:
    """Write a certificate for localhost that signs itself, and its key."""
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "here")])
    begin = datetime.now(UTC) - timedelta(minutes=5)
    signed = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(begin + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    plain = serialization.NoEncryption()
    files = folder / "cert.pem", folder / "key.pem"
    files[0].write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    files[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain))
    return files


def test_server_speaks_tls_and_loads_a_new_version_over_it(
    tmp_path: Path, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cert, key = certificate(tmp_path)
    with serving(tmp_path, bundle, "--tls-cert", cert, "--tls-key", key) as server:
        address = f"https://localhost:{server.port}"
        context = ssl.create_default_context(cafile=cert)
        with urllib.request.urlopen(f"{address}/v2/models/brightness/ready", context=context) as response:
            assert response.status == 200
        with pytest.raises(OSError, match="CERTIFICATE_VERIFY_FAILED"):
            urllib.request.urlopen(f"{address}/v2", context=ssl.create_default_context())
        monkeypatch.setenv("no_proxy", "")
        monkeypatch.setenv("https_proxy", "http://nobody:1")
        _load(ServerConfig(tls=(cert, key)), address, "brightness")
        with pytest.raises(OSError, match="404"):
            _load(ServerConfig(tls=(cert, key)), address, "another")
