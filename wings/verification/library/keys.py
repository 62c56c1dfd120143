"""Elliptic curve keys and certificates of signatures, by the package cryptography, and whom to trust."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.verification import Criticality, ExtensionPolicy, PolicyBuilder, Store, VerificationError

from gauntlet.core.errors import ConfigError

KINDS = "an unencrypted PEM file with an elliptic curve key (P-256, P-384 or P-521)"
HASHES = {256: hashes.SHA256(), 384: hashes.SHA384(), 521: hashes.SHA512()}
CERTIFICATE = b"BEGIN CERTIFICATE"
PEM, CODE_SIGNING = serialization.Encoding.PEM, x509.oid.ExtendedKeyUsageOID.CODE_SIGNING


def read_private_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Return the private key of a PEM file; `ConfigError` when there is none of the right kind."""
    try:
        key: Any = serialization.load_pem_private_key(path.read_bytes(), None)
        _usable(key.public_key())
    except (OSError, ValueError, TypeError) as error:  # TypeError: it is encrypted
        fix = "openssl ecparam -name prime256v1 -genkey -noout -out KEY.pem"
        raise ConfigError(f"{path}: expected {KINDS}: {error}. Fix: {fix}") from error
    return key  # type: ignore[no-any-return]


def read_trusted(path: Path) -> bytes:
    """Return the public key of a PEM file, its certificates, or a JSON file's identity; `ConfigError` otherwise."""
    try:
        content = path.read_bytes()
        if content.lstrip().startswith(b"{"):
            return identity(**json.loads(content))
        if CERTIFICATE in content:
            return b"".join(known.public_bytes(PEM) for known in x509.load_pem_x509_certificates(content))
        return pem(public_key(content))
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        what, fix = KINDS.replace("key", "public key"), "openssl ec -in KEY.pem -pubout -out PUB.pem"
        others = 'certificates, or {"identity": "me@example.com", "issuer": "https://example.com"}'
        raise ConfigError(f"{path}: expected {what}, {others}: {error}. Fix: {fix}") from error


def identity(identity: str, issuer: str) -> bytes:
    """Return a Sigstore identity as `gauntlet trust` keeps it; `TypeError` where one is no text."""
    if not (isinstance(identity, str) and isinstance(issuer, str)):
        raise TypeError("identity and issuer are texts")
    return json.dumps({"identity": identity, "issuer": issuer}).encode()


def public_key(content: bytes) -> ec.EllipticCurvePublicKey:
    """Return the key of a PEM file; `ValueError` when it is of another kind."""
    return _usable(serialization.load_pem_public_key(content))


def pem(key: ec.EllipticCurvePublicKey) -> bytes:
    """Return a public key in PEM form."""
    return key.public_bytes(PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def certified_key(encoded: Sequence[bytes], trusted: bytes | None) -> ec.EllipticCurvePublicKey:
    """Return the key of the first certificate, in DER, if the others lead from it to one of the trusted, in PEM.

    Without trusted ones, the last is the end. When a signature was made is not proven: as for OpenSSF's command,
    certificates count that did when the first began to. Issuers may lack usages. `ValueError` for a wrong use.
    """
    chain = [x509.load_der_x509_certificate(content) for content in encoded]
    ends = x509.load_pem_x509_certificates(trusted) if trusted else chain[-1:]
    issuers = ExtensionPolicy.webpki_defaults_ca().may_be_present(x509.KeyUsage, Criticality.AGNOSTIC, None)
    policies = PolicyBuilder().extension_policies(ca_policy=issuers, ee_policy=ExtensionPolicy.permit_all())
    verifier = policies.store(Store(ends)).time(chain[0].not_valid_before_utc).build_client_verifier()
    try:
        path = verifier.verify(chain[0], chain[1:]).chain
        usages = [[extension.value for extension in certificate.extensions] for certificate in path]
    except (VerificationError, x509.DuplicateExtension, x509.UnsupportedGeneralNameType) as error:
        raise ValueError("its certificates do not lead to a trusted one") from error
    uses = [usage.digital_signature for usage in usages[0] if isinstance(usage, x509.KeyUsage)]
    uses += [CODE_SIGNING in usage for usage in usages[0] if isinstance(usage, x509.ExtendedKeyUsage)]
    issue = [usage.key_cert_sign for own in usages[1:] for usage in own if isinstance(usage, x509.KeyUsage)]
    if not (uses and all(uses) and all(issue)):
        raise ValueError("its certificate is not one for signing, or an issuer's not one for certificates")
    if not set(chain) <= set(path):
        raise ValueError("it has more certificates than lead to the trusted one")
    return _usable(chain[0].public_key())


def _usable(key: Any) -> ec.EllipticCurvePublicKey:
    if not isinstance(key, ec.EllipticCurvePublicKey) or key.key_size not in HASHES:
        raise ValueError("a key of another kind")
    return key
