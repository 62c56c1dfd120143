"""Signatures that OpenSSF's model signing publishes with its tests verify as their authors say."""

import base64
import hashlib
import json
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from bundles import make_keys
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from gauntlet.core.errors import ConfigError
from wings.verification.library.keys import read_trusted
from wings.verification.library.signing import SignatureResult, _document, verify_signature

SIGNATURES = json.loads(Path(__file__).with_name("openssf-signatures.json").read_text())["signatures"]
KEY = base64.b64decode(SIGNATURES["v1.0.1"]["verificationMaterial"]["publicKey"]["rawBytes"])
CHAIN = SIGNATURES["v1.1.0-certificate"]["verificationMaterial"]["x509CertificateChain"]["certificates"]
ISSUER = x509.load_der_x509_certificate(base64.b64decode(CHAIN[1]["rawBytes"])).public_bytes(Encoding.PEM)
"""The root is not in the files, so the certificate that it issued is trusted."""
FILE, FOLDER = {".": b"signme-1\n"}, {"signme-1": b"signme-1\n", "signme-2": b"signme-2"}
CERTIFIED = FOLDER | {"signme-1": b"signme-1"}
MODELS = {"v0.3.1": FILE, "v1.0.0": FILE, "v1.0.1": FOLDER, "v1.1.0": FOLDER}
MODELS |= {name: CERTIFIED for name in SIGNATURES if name.endswith("-certificate")}
IDENTIFIED = [name for name in SIGNATURES if name.endswith("-sigstore")]
WHO = {"identity": "stefanb@us.ibm.com", "issuer": "https://sigstore.verify.ibm.com/oauth2"}
Issued = tuple[x509.Certificate, ec.EllipticCurvePrivateKey]
AUTHORITY, NO_ISSUER = x509.BasicConstraints(True, None), x509.KeyUsage(True, *[False] * 8)
CODE, TLS = (x509.ExtendedKeyUsage([getattr(x509.ExtendedKeyUsageOID, use)]) for use in ("CODE_SIGNING", "SERVER_AUTH"))


def checked(release: str, files: dict[str, bytes], key: bytes | None = b"", text: str = "") -> SignatureResult:
    digests, trusted = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}, key
    if key == b"":
        trusted = ISSUER if files == CERTIFIED or release.endswith("-certificate") else KEY
    return verify_signature("model.sig", (text or json.dumps(SIGNATURES[release])).encode(), digests, trusted)


@pytest.mark.parametrize(("release", "files"), MODELS.items())
def test_signature_of_each_release_holds_for_its_files_and_its_key_alone(
    release: str, files: dict[str, bytes], tmp_path: Path
) -> None:
    assert checked(release, files).trusted
    assert checked(release, files, KEY).trusted  # the certificate is of the same key
    assert bool(checked(release, files, None).problem) == (release == "v1.1.0")  # which only names its key
    assert not checked(release, files, None).trusted
    assert checked(release, files | {min(files): b"other"}).problem.startswith(f"{min(files)} is not as it was signed")
    assert checked(release, files | {"added": b""}).problem.startswith("added is not as it was signed")
    assert checked(release, {}).problem.startswith("it signs other files")
    others = make_keys(tmp_path)[1].read_bytes(), issued("other", None, AUTHORITY)[0].public_bytes(Encoding.PEM)
    assert not any(checked(release, files, other).trusted for other in others)


@pytest.mark.parametrize(("release", "files"), MODELS.items())
def test_no_character_of_a_published_signature_can_be_changed(release: str, files: dict[str, bytes]) -> None:
    text = json.dumps(SIGNATURES[release], separators=(",", ":"))
    for place in range(0, len(text), 7):
        changed = chr(ord(text[place]) ^ 1)
        assert checked(release, files, text=text[:place] + changed + text[place + 1 :]).problem, text[place:]


def issued(name: str, by: Issued | None, *extensions: x509.ExtensionType) -> Issued:
    """Return a certificate that ended yesterday, and its key."""
    key, subject = (
        ec.generate_private_key(ec.SECP256R1()),
        x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]),
    )
    issuer, signer = (by[0].subject, by[1]) if by else (subject, key)
    days = [datetime.now(UTC) - timedelta(days=days) for days in (9, 1)]
    builder = x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number(), *days)
    for extension in (x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), *extensions):
        builder = builder.add_extension(extension, critical=extension is AUTHORITY)
    return builder.sign(signer, hashes.SHA256()), key


def signed_with(*chain: Issued) -> str:
    """Return the newest published statement, signed with the first certificate's key."""
    payload = base64.b64decode(SIGNATURES["v1.1.0-certificate"]["dsseEnvelope"]["payload"])
    encoded = b"DSSEv1 28 application/vnd.in-toto+json %d %s" % (len(payload), payload)
    ders = [base64.b64encode(certificate.public_bytes(Encoding.DER)).decode() for certificate, _ in chain]
    material = {"x509CertificateChain": {"certificates": [{"rawBytes": der} for der in ders]}}
    return _document(material, payload, chain[0][1].sign(encoded, ec.ECDSA(hashes.SHA256())))


def test_certificate_counts_only_for_signing_and_only_if_all_its_chain_leads_to_a_trusted_one(tmp_path: Path) -> None:
    root, other = (issued(name, None, AUTHORITY) for name in ("root", "other"))
    middle, person, wrong = (issued("middle", root, *kinds) for kinds in ((AUTHORITY,), (), (AUTHORITY, NO_ISSUER)))
    leaf = issued("release", middle, CODE)
    (tmp_path / "roots.pem").write_bytes(b"".join(one.public_bytes(Encoding.PEM) for one, _ in (other, root)))
    trusted = read_trusted(tmp_path / "roots.pem")
    for chain, problem in (
        ((leaf, middle), ""),
        ((leaf, middle, root), ""),
        ((leaf,), "do not lead"),
        ((leaf, middle, other), "more certificates than lead"),
        ((issued("x", person, CODE), person), "do not lead"),  # the person is no authority
        ((issued("x", wrong, CODE), wrong), "an issuer's not one for certificates"),
        ((issued("server", root, TLS),), "not one for signing"),
        ((issued("nothing", root),), "not one for signing"),
    ):
        result = checked("", CERTIFIED, trusted, signed_with(*chain))
        assert (problem in result.problem, result.trusted) == (True, not problem)
    assert "not by the given one, a certificate" in checked("v1.0.1", FOLDER, trusted).problem


@pytest.mark.parametrize("release", IDENTIFIED)
def test_signature_of_an_identity_holds_for_its_files_and_that_identity_alone(
    release: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("socket.socket.connect", None)  # nothing asks the network
    (tmp_path / "who.json").write_text(json.dumps(WHO))
    who = read_trusted(tmp_path / "who.json")
    assert checked(release, CERTIFIED, who).trusted
    result = checked(release, CERTIFIED, None)
    assert (result.problem, result.trusted, result.identity) == ("", False, " by ".join(WHO.values()))
    assert checked(release, CERTIFIED | {"added": b""}, who).problem.startswith("added is not as it was signed")
    others = [json.dumps(WHO | {key: value + "m"}).encode() for key, value in WHO.items()]
    for other in (*others, KEY, ISSUER):
        assert "not by the given one" in checked(release, CERTIFIED, other).problem
    assert not checked("v1.0.1", FOLDER, who).trusted


@pytest.mark.parametrize("release", IDENTIFIED)
def test_no_part_of_the_proof_of_an_identity_can_be_changed(release: str) -> None:
    document, who = SIGNATURES[release], json.dumps(WHO).encode()
    entry = document["verificationMaterial"]["tlogEntries"][0]
    texts = [document["verificationMaterial"]["certificate"]["rawBytes"], document["dsseEnvelope"]["payload"]]
    texts += [document["dsseEnvelope"]["signatures"][0]["sig"], entry["canonicalizedBody"], entry["integratedTime"]]
    texts += [entry["inclusionPromise"]["signedEntryTimestamp"], *entry["inclusionProof"]["hashes"]]
    texts += [entry["inclusionProof"]["rootHash"], entry["inclusionProof"]["treeSize"]]
    whole = json.dumps(document)
    for text in (json.dumps(text) for text in texts):
        for place in range(1, len(text) - 1, max(1, len(text) // 3)):
            other = text[:place] + chr(ord(text[place]) ^ 1) + text[place + 1 :]
            assert whole.count(text) == 1, text
            assert not checked(release, CERTIFIED, who, whole.replace(text, other)).trusted, (text, place)


@pytest.mark.slow
def test_identity_that_is_not_one_and_a_missing_package_have_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "who.json"
    for text in (
        "{",
        '{"identity": "me"}',
        '{"identity": "me", "issuer": 1}',
        '{"identity": "a", "issuer": "b", "x": 1}',
    ):
        path.write_text(text)
        with pytest.raises(ConfigError, match=r"expected .*certificates, or {.identity.*Fix: "):
            read_trusted(path)
    monkeypatch.setitem(sys.modules, "sigstore", None)
    assert "needs the package sigstore. Fix: " in checked(IDENTIFIED[0], CERTIFIED, None).problem
