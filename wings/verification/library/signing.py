"""Sign a bundle offline with an elliptic curve key, and verify its signatures.

The format is that of OpenSSF Model Signing v1.0 (https://github.com/sigstore/model-transparency), so that its command
verifies what is signed here, and the other way round: a Sigstore bundle around a DSSE envelope
(https://github.com/secure-systems-lab/dsse) around an in-toto statement with the digest of every file. Its reference
implementation brings a dozen packages for keyless signing; with a key, `cryptography` is enough.
"""

import base64
import hashlib
import importlib.util
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from gauntlet.bundle.bundle import MANIFEST, SIGNATURES, Bundle
from gauntlet.core.artifact import sha256_of, write_atomically
from gauntlet.core.errors import ConfigError, install_command
from gauntlet.core.frozen import Frozen

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey

MEDIA_TYPE = "application/vnd.dev.sigstore.bundle.v0.3+json"
PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://model_signing/signature/v1.0"
KEY_KINDS = "an unencrypted PEM file with an elliptic curve key (P-256, P-384 or P-521)"
MAKE_KEY = "openssl ecparam -name prime256v1 -genkey -noout -out KEY.pem"


class SignatureResult(Frozen):
    """What verifying one signature gave."""

    file: str
    key: str = Field("", description="SHA-256 of the public key in PEM form")
    problem: str = Field("", description="why it does not hold; empty where it does")
    trusted: bool = Field(False, description="whether it holds, and its key is the one that the caller named")


def sign(bundle: Bundle, private_key: Path) -> Path:
    """Add a signature of the bundle's files, without earlier signatures, to its folder; return the signature's file.

    Raises:
        ConfigError: when the key cannot be read or is of another kind, or cryptography is not installed.
    """
    _require_cryptography()
    key = read_private_key(private_key)
    public = _pem(key.public_key())
    statement = _statement(bundle.contract.name, _digests(bundle))
    payload = json.dumps(statement, sort_keys=True, separators=(",", ":")).encode()
    path = bundle.folder / SIGNATURES / f"{_digest(public)[:16]}.sig"
    write_atomically(path, _document(public, payload, key.sign(_authenticated(payload), _algorithm(key))))
    return path


def verify_signatures(bundle: Bundle, public_key: Path | None = None) -> tuple[SignatureResult, ...]:
    """Verify each file in `signatures/`; with a key, only signatures by it are trusted.

    Without a key, a signature proves that its files are those which the holder of *some* key signed.

    Raises:
        ConfigError: when `public_key` cannot be read or is of another kind.
    """
    files = sorted(p for p in (bundle.folder / SIGNATURES).rglob("*") if p.is_file())
    if files or public_key:
        _require_cryptography()
    trusted = _pem(read_public_key(public_key)) if public_key else None
    names, digests = [path.relative_to(bundle.folder).as_posix() for path in files], _digests(bundle)
    return tuple(verify_signature(name, (bundle.folder / name).read_bytes(), digests, trusted) for name in names)


def verify_signature(name: str, content: bytes, digests: Mapping[str, str], trusted: bytes | None) -> SignatureResult:
    """Verify the signature in a file of this name and content; `trusted` is a public key in PEM form.

    The file may leave that key out, as those of OpenSSF's command do; `digests` are those of the files by name.
    """
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm

    given = _digest(trusted) if trusted else ""
    try:
        document = json.loads(content)
        public, payload, signature = _parts(document, trusted)
        key, digest = _public_key(public), _digest(public)
        key.verify(signature, _authenticated(payload), _algorithm(key))
        whole = json.loads(_document(public, payload, signature))
        hash_bits = _algorithm(key).algorithm.digest_size * 8
        whole["verificationMaterial"]["publicKey"]["keyDetails"] = f"PKIX_ECDSA_P{key.key_size}_SHA_{hash_bits}"
        difference = _difference(json.loads(payload), digests)
    except InvalidSignature:
        return SignatureResult(file=name, problem="it does not verify: its statement, signature or key was altered")
    except (ValueError, LookupError, TypeError, RecursionError, UnsupportedAlgorithm) as error:
        return SignatureResult(file=name, problem=f"it cannot be read: {error or type(error).__name__}")
    problem = difference or ("" if _is_part(document, whole) else "parts of it that are not signed are altered")
    if not problem and given not in ("", digest):
        problem = f"it is by the key {digest[:16]}, not by the given one, {given[:16]}"
    return SignatureResult(file=name, key=digest, problem=problem, trusted=not problem and digest == given)


def read_private_key(path: Path) -> "EllipticCurvePrivateKey":
    """Return the private key of a PEM file; `ConfigError` when there is none of the right kind."""
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(path.read_bytes(), None)
        if isinstance(key, EllipticCurvePrivateKey) and key.curve.key_size in (256, 384, 521):
            return key
    except (OSError, ValueError, TypeError) as error:  # TypeError: it is encrypted
        raise ConfigError(f"{path}: expected {KEY_KINDS}: {error}. Fix: {MAKE_KEY}") from error
    raise ConfigError(f"{path}: expected {KEY_KINDS}. Fix: {MAKE_KEY}")


def read_public_key(path: Path) -> "EllipticCurvePublicKey":
    """Return the public key of a PEM file; `ConfigError` when there is none of the right kind."""
    from cryptography.exceptions import UnsupportedAlgorithm

    try:
        return _public_key(path.read_bytes())
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        fix = "openssl ec -in KEY.pem -pubout -out PUB.pem"
        raise ConfigError(f"{path}: expected {KEY_KINDS.replace('key', 'public key')}: {error}. Fix: {fix}") from error


def _parts(document: Any, trusted: bytes | None) -> tuple[bytes, bytes, bytes]:
    """Return the public key, the signed statement and the signature of a parsed signature file."""
    envelope, known = document["dsseEnvelope"], document["verificationMaterial"]["publicKey"]
    if "rawBytes" not in known:
        if trusted is None or known["hint"] != _digest(trusted):
            raise LookupError("the key that it names is neither in it nor the given one")
        known = {"rawBytes": _base64(trusted)}
    texts = known["rawBytes"], envelope["payload"], envelope["signatures"][0]["sig"]
    public, payload, signature = (base64.b64decode(text, validate=True) for text in texts)
    return public, payload, signature


def _document(public: bytes, payload: bytes, signature: bytes) -> str:
    """Return the text of a signature file."""
    signatures = [{"sig": _base64(signature), "keyid": ""}]
    envelope = {"payload": _base64(payload), "payloadType": PAYLOAD_TYPE, "signatures": signatures}
    material = {"publicKey": {"hint": _digest(public), "rawBytes": _base64(public)}, "tlogEntries": []}
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
    known, files = signed["predicate"]["resources"], expected["predicate"]["resources"]
    parts = ("_type", "subject", "predicateType")
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
    resources = [{"name": file, "algorithm": "sha256", "digest": digests[file]} for file in sorted(digests)]
    root = hashlib.sha256(b"".join(bytes.fromhex(resource["digest"]) for resource in resources)).hexdigest()
    how = {"method": "files", "hash_type": "sha256", "allow_symlinks": False, "ignore_paths": [SIGNATURES]}
    return {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": name, "digest": {"sha256": root}}],
        "predicateType": PREDICATE_TYPE,
        "predicate": {"serialization": how, "resources": resources},
    }


def _authenticated(payload: bytes) -> bytes:
    """Return what is signed: DSSE's pre-authentication encoding."""
    return b"DSSEv1 %d %s %d %s" % (len(PAYLOAD_TYPE), PAYLOAD_TYPE.encode(), len(payload), payload)


def _algorithm(key: "EllipticCurvePrivateKey | EllipticCurvePublicKey") -> Any:
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.ECDSA({256: hashes.SHA256(), 384: hashes.SHA384(), 521: hashes.SHA512()}[key.curve.key_size])


def _public_key(pem: bytes) -> "EllipticCurvePublicKey":
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    key = load_pem_public_key(pem)
    if not isinstance(key, EllipticCurvePublicKey) or key.curve.key_size not in (256, 384, 521):
        raise ValueError("a key of another kind")
    return key


def _pem(key: "EllipticCurvePublicKey") -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def _require_cryptography() -> None:
    if importlib.util.find_spec("cryptography") is None:
        raise ConfigError(f"signatures need the package cryptography. Fix: {install_command('signing')}")


def _digest(public: bytes) -> str:
    return hashlib.sha256(public).hexdigest()


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()
