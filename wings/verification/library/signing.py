"""Sign a bundle offline with an elliptic curve key, and verify signatures by keys, certificates and identities.

The format is that of OpenSSF Model Signing v1.0 (https://github.com/sigstore/model-transparency), so that its command
verifies what is signed here, and the other way round, v0.2 included: a Sigstore bundle around a DSSE envelope
(https://github.com/secure-systems-lab/dsse) around an in-toto statement with the digest of every file.
"""

import base64
import hashlib
import importlib.util
import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import Field

from gauntlet.bundle.bundle import MANIFEST, SIGNATURES, Bundle
from gauntlet.core.artifact import sha256_of, write_atomically
from gauntlet.core.errors import ConfigError, install_command
from gauntlet.core.frozen import Frozen

MEDIA_TYPE = "application/vnd.dev.sigstore.bundle.v0.3+json"
PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://model_signing/signature/v1.0"
OLD_PREDICATE_TYPE = "https://model_signing/Digests/v0.1"  # of release 0.2: every file is a subject
_decoded = partial(base64.b64decode, validate=True)


class SignatureResult(Frozen):
    """What verifying one signature gave."""

    file: str
    key: str = Field(
        "", description="SHA-256 of the public key in PEM form, or of the identity as `gauntlet trust` keeps it"
    )
    identity: str = Field("", description="whom a certificate of Sigstore names, and who vouched for that")
    problem: str = Field("", description="why it does not hold; empty where it does")
    trusted: bool = Field(False, description="whether it holds, and its key is the one that the caller named")


def sign(bundle: Bundle, private_key: Path) -> Path:
    """Add a signature of the bundle's files, without earlier signatures, to its folder; return the signature's file."""
    keys, statement = key_library(), _statement(bundle.contract.name, _digests(bundle))
    key = keys.read_private_key(private_key)
    public = keys.pem(key.public_key())
    payload = json.dumps(statement, sort_keys=True, separators=(",", ":")).encode()
    signature = key.sign(_authenticated(payload), keys.ec.ECDSA(keys.HASHES[key.key_size]))
    path = bundle.folder / SIGNATURES / f"{_digest(public)[:16]}.sig"
    write_atomically(path, _document({"publicKey": _material(public)}, payload, signature))
    return path


def verify_signatures(bundle: Bundle, trusted: Path | bytes | None = None) -> tuple[SignatureResult, ...]:
    """Verify each file in `signatures/`; with a key or certificates (`keys.read_trusted`), only those by these hold.

    Without them, a signature proves that its files are those which the holder of *some* key signed.
    """
    files = sorted(p for p in (bundle.folder / SIGNATURES).rglob("*") if p.is_file())
    trusted = key_library().read_trusted(trusted) if isinstance(trusted, Path) else trusted
    names, digests = [path.relative_to(bundle.folder).as_posix() for path in files], _digests(bundle)
    return tuple(verify_signature(name, (bundle.folder / name).read_bytes(), digests, trusted) for name in names)


def verify_signature(name: str, content: bytes, digests: Mapping[str, str], trusted: bytes | None) -> SignatureResult:
    """Verify the signature in a file of this name and content; `trusted` is as of `read_trusted`.

    The file may leave that key out, as those of OpenSSF's command do; `digests` are those of the files by name.
    """
    keys = key_library()
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.x509 import InvalidVersion

    ends = trusted if trusted and keys.CERTIFICATE in trusted else None
    given, identity = _digest(trusted) if trusted and not ends else "", ""
    try:
        document = json.loads(content)
        material, envelope = document["verificationMaterial"], document["dsseEnvelope"]
        if "certificate" in material:
            payload, *signer = _proven_identity(content)
            whole, known, digest = document, material, _digest(keys.identity(*signer))
            identity = " by ".join(signer)
        else:
            payload, signature = (_decoded(text) for text in (envelope["payload"], envelope["signatures"][0]["sig"]))
            key, known = _signer(material, trusted, ends)
            old = _signed_by_release_02(payload)
            bits = 256 if old else key.key_size
            key.verify(signature, old or _authenticated(payload), keys.ec.ECDSA(keys.HASHES[bits]))
            whole, digest = json.loads(_document(known, payload, signature)), _digest(keys.pem(key))
        difference = _difference(json.loads(payload), digests)
    except InvalidSignature:
        return SignatureResult(file=name, problem="it does not verify: its statement, signature or key was altered")
    except (ValueError, LookupError, TypeError, RecursionError, UnsupportedAlgorithm, InvalidVersion) as error:
        return SignatureResult(file=name, problem=f"it cannot be verified: {error or type(error).__name__}")
    problem = difference or ("" if _is_part(document, whole) else "parts of it that are not signed are altered")
    if not problem and (given not in ("", digest) or (ends and "x509CertificateChain" not in known)):
        who = identity or f"the key {digest[:16]}"
        problem = f"it is by {who}, not by the given one, {given[:16] or 'a certificate'}"
    proof = bool(trusted and not problem)
    return SignatureResult(file=name, key=digest, identity=identity, problem=problem, trusted=proof)


def _proven_identity(content: bytes) -> tuple[bytes, str, str]:
    if importlib.util.find_spec("sigstore") is None:
        raise ValueError(f"a Sigstore identity needs the package sigstore. Fix: {install_command('signing')}")
    from wings.verification.library.identities import proven

    return proven(content)


def _signer(material: Any, trusted: bytes | None, ends: bytes | None) -> tuple[Any, dict[str, Any]]:
    """Return the key of a signature, and all that its file may say of it; `ends` are the trusted certificates."""
    keys = key_library()
    if "x509CertificateChain" in material:
        chain = material["x509CertificateChain"]["certificates"]
        encoded = [_decoded(certificate["rawBytes"]) for certificate in chain]
        certificates = [{"rawBytes": _base64(content)} for content in encoded]
        return keys.certified_key(encoded, ends), {"x509CertificateChain": {"certificates": certificates}}
    known = material["publicKey"]
    if "rawBytes" not in known and (trusted is None or known["hint"] != _digest(trusted)):
        raise LookupError("the key that it names is neither in it nor the given one")
    key = keys.public_key(_decoded(known["rawBytes"]) if "rawBytes" in known else trusted)
    details = f"PKIX_ECDSA_P{key.key_size}_SHA_{keys.HASHES[key.key_size].digest_size * 8}"
    return key, {"publicKey": _material(keys.pem(key)) | {"keyDetails": details}}


def _material(public: bytes) -> dict[str, str]:
    return {"hint": _digest(public), "rawBytes": _base64(public)}


def _document(material: dict[str, Any], payload: bytes, signature: bytes) -> str:
    """Return the text of a signature file."""
    signatures = [{"sig": _base64(signature), "keyid": ""}]
    envelope = {"payload": _base64(payload), "payloadType": PAYLOAD_TYPE, "signatures": signatures}
    material = material | {"tlogEntries": []}
    content = {"mediaType": MEDIA_TYPE, "verificationMaterial": material, "dsseEnvelope": envelope}
    return json.dumps(content, indent=1, sort_keys=True) + "\n"


def _is_part(part: Any, whole: Any) -> bool:
    """Tell whether a parsed file says nothing but what another says; None is nothing."""
    if isinstance(part, dict) and isinstance(whole, dict):
        return all(key in whole and _is_part(value, whole[key]) for key, value in part.items())
    if isinstance(part, list) and isinstance(whole, list):
        return len(part) == len(whole) and all(map(_is_part, part, whole))
    return part is None or bool(part == whole)


def _difference(signed: Any, digests: Mapping[str, str]) -> str:
    """Return how the signed statement differs from that about files with these digests; "" where it does not."""
    expected = _statement(signed["subject"][0]["name"], digests)
    files, parts = expected["predicate"]["resources"], ["_type", "subject", "predicateType"]
    if signed["predicateType"] == OLD_PREDICATE_TYPE:
        known, parts = [_resource(file["name"], file["digest"]["sha256"]) for file in signed["subject"]], ["_type"]
    else:
        known = signed["predicate"]["resources"]
    if sorted(known, key=lambda r: r["name"]) == files and all(signed[part] == expected[part] for part in parts):
        return ""
    changed = [resource["name"] for resource in files if resource not in known]
    what = f"{changed[0]} is not as it was signed" if changed else "it signs other files"
    return f"{what}: the bundle changed afterwards"


def _digests(bundle: Bundle) -> dict[str, str]:
    """Return the digest of every file of a bundle but its signatures, by name."""
    files = {name: entry.sha256 for name, entry in bundle.manifest.files.items()}
    return files | {MANIFEST: sha256_of([bundle.folder / MANIFEST])}


def _statement(name: str, digests: Mapping[str, str]) -> dict[str, Any]:
    """Return the in-toto statement about files; its subject's digest is that of all digests in order."""
    resources = [_resource(file, digests[file]) for file in sorted(digests)]
    root = hashlib.sha256(b"".join(bytes.fromhex(resource["digest"]) for resource in resources)).hexdigest()
    how = {"method": "files", "hash_type": "sha256", "allow_symlinks": False, "ignore_paths": [SIGNATURES]}
    return {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": name, "digest": {"sha256": root}}],
        "predicateType": PREDICATE_TYPE,
        "predicate": {"serialization": how, "resources": resources},
    }


def _resource(name: str, digest: str) -> dict[str, str]:
    return {"name": name, "algorithm": "sha256", "digest": digest}


def _authenticated(payload: bytes) -> bytes:
    """Return what is signed: DSSE's pre-authentication encoding."""
    return b"DSSEv1 %d %s %d %s" % (len(PAYLOAD_TYPE), PAYLOAD_TYPE.encode(), len(payload), payload)


def _signed_by_release_02(payload: bytes) -> bytes:
    """Return what release 0.2 signed, with SHA-256: how Python shows the bytes; nothing for a later one's payload."""
    if f'"{OLD_PREDICATE_TYPE}"'.encode() not in payload:
        return b""
    return f"DSSEV1 {len(PAYLOAD_TYPE)} {PAYLOAD_TYPE} {len(payload)} {payload!r}".encode()


def key_library() -> Any:
    """Return the module of keys; `ConfigError` where the package that it needs is not installed."""
    if importlib.util.find_spec("cryptography") is None:
        raise ConfigError(f"signatures need the package cryptography. Fix: {install_command('signing')}")
    from wings.verification.library import keys

    return keys


def _digest(public: bytes) -> str:
    return hashlib.sha256(public).hexdigest()


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()
