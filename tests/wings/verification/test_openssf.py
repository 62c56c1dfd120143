"""Signatures that OpenSSF's model signing publishes with its tests verify as their authors say."""

import base64
import hashlib
import json
from pathlib import Path

import pytest
from bundles import make_keys

from wings.verification.library.signing import SignatureResult, verify_signature

SIGNATURES = json.loads(Path(__file__).with_name("openssf-signatures.json").read_text())["signatures"]
KEY = base64.b64decode(SIGNATURES["v1.0.1"]["verificationMaterial"]["publicKey"]["rawBytes"])
FILE, FOLDER = {".": b"signme-1\n"}, {"signme-1": b"signme-1\n", "signme-2": b"signme-2"}
MODELS = {"v0.3.1": FILE, "v1.0.0": FILE, "v1.0.1": FOLDER, "v1.1.0": FOLDER}


def checked(release: str, files: dict[str, bytes], key: bytes | None = KEY, text: str = "") -> SignatureResult:
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    return verify_signature("model.sig", (text or json.dumps(SIGNATURES[release])).encode(), digests, key)


@pytest.mark.parametrize(("release", "files"), MODELS.items())
def test_signature_of_each_release_holds_for_its_files_and_its_key_alone(
    release: str, files: dict[str, bytes], tmp_path: Path
) -> None:
    assert checked(release, files).trusted
    assert bool(checked(release, files, None).problem) == (release == "v1.1.0")  # which only names its key
    assert checked(release, files | {min(files): b"other"}).problem.startswith(f"{min(files)} is not as it was signed")
    assert checked(release, files | {"added": b""}).problem.startswith("added is not as it was signed")
    assert checked(release, {}).problem.startswith("it signs other files")
    assert not checked(release, files, make_keys(tmp_path)[1].read_bytes()).trusted


@pytest.mark.parametrize(("release", "files"), MODELS.items())
def test_no_character_of_a_published_signature_can_be_changed(release: str, files: dict[str, bytes]) -> None:
    text = json.dumps(SIGNATURES[release], separators=(",", ":"))
    for place in range(0, len(text), 7):
        changed = chr(ord(text[place]) ^ 1)
        assert checked(release, files, text=text[:place] + changed + text[place + 1 :]).problem, text[place:]
