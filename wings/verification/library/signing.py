"""Sign a bundle offline with an elliptic curve key, and verify its signatures.

The format is that of OpenSSF Model Signing v1.0 (https://github.com/sigstore/model-transparency), so that its
`model_signing verify key` verifies them too: a Sigstore bundle around a DSSE envelope
(https://github.com/secure-systems-lab/dsse) around an in-toto statement with the digest of every file. Its reference
implementation brings a dozen packages for keyless signing; with a key, `cryptography` is enough.
"""

import base64
import hashlib
import importlib.util
import json
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
    payload = json.dumps(_statement(bundle), sort_keys=True, separators=(",", ":")).encode()
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
    trusted = _digest(_pem(read_public_key(public_key))) if public_key else None
    return tuple(_verified(bundle, path, trusted) for path in files)


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


def _verified(bundle: Bundle, path: Path, trusted: str | None) -> SignatureResult:
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm

    name = path.relative_to(bundle.folder).as_posix()
    try:
        content = json.loads(path.read_bytes())
        public, payload, signature = _parts(content)
        key, digest = _public_key(public), _digest(public)
        key.verify(signature, _authenticated(payload), _algorithm(key))
        altered = path.read_text() != _document(public, payload, signature)
        difference = _difference(json.loads(payload), _statement(bundle))
    except InvalidSignature:
        return SignatureResult(file=name, problem="it does not verify: its statement, signature or key was altered")
    except (ValueError, LookupError, TypeError, UnsupportedAlgorithm) as error:
        return SignatureResult(file=name, problem=f"it cannot be read: {error or type(error).__name__}")
    problem = difference or ("parts of it that are not signed are altered" if altered else "")
    if not problem and trusted not in (None, digest):
        problem = f"it is by the key {digest[:16]}, not by the given one, {str(trusted)[:16]}"
    return SignatureResult(file=name, key=digest, problem=problem, trusted=not problem and digest == trusted)


def _parts(content: Any) -> tuple[bytes, bytes, bytes]:
    """Return the public key, the signed statement and the signature of a parsed signature file."""
    envelope, material = content["dsseEnvelope"], content["verificationMaterial"]
    texts = material["publicKey"]["rawBytes"], envelope["payload"], envelope["signatures"][0]["sig"]
    public, payload, signature = (base64.b64decode(text, validate=True) for text in texts)
    return public, payload, signature


def _document(public: bytes, payload: bytes, signature: bytes) -> str:
    """Return the text of a signature file."""
    envelope = {
        "payload": _base64(payload),
        "payloadType": PAYLOAD_TYPE,
        "signatures": [{"sig": _base64(signature), "keyid": ""}],
    }
    material = {"publicKey": {"hint": _digest(public), "rawBytes": _base64(public)}, "tlogEntries": []}
    content = {"mediaType": MEDIA_TYPE, "verificationMaterial": material, "dsseEnvelope": envelope}
    return json.dumps(content, indent=1, sort_keys=True) + "\n"


def _difference(signed: Any, expected: dict[str, Any]) -> str:
    """Return how the signed statement differs from the expected one; "" where they are equal."""
    if signed == expected:
        return ""
    known = signed["predicate"]["resources"]
    changed = [resource["name"] for resource in expected["predicate"]["resources"] if resource not in known]
    what = f"{changed[0]} is not as it was signed" if changed else "it signs other files"
    return f"{what}: the bundle changed afterwards"


def _statement(bundle: Bundle) -> dict[str, Any]:
    """Return the in-toto statement about the bundle's files; its subject's digest is that of all digests in order."""
    digests = {name: entry.sha256 for name, entry in bundle.manifest.files.items()}
    digests[MANIFEST] = sha256_of([bundle.folder / MANIFEST])
    resources = [{"name": name, "algorithm": "sha256", "digest": digests[name]} for name in sorted(digests)]
    root = hashlib.sha256(b"".join(bytes.fromhex(resource["digest"]) for resource in resources)).hexdigest()
    return {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": bundle.contract.name, "digest": {"sha256": root}}],
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            "serialization": {
                "method": "files",
                "hash_type": "sha256",
                "allow_symlinks": False,
                "ignore_paths": [SIGNATURES],
            },
            "resources": resources,
        },
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
