"""Sigstore identities that sign: their certificates, and the log that has them, are proven without the network.

The roots are those that the installed package sigstore brings, or the newer ones that its own command has fetched.
"""

import logging

from cryptography import x509
from sigstore.errors import Error
from sigstore.models import Bundle
from sigstore.verify import Verifier
from sigstore.verify.policy import Identity

ISSUER = x509.ObjectIdentifier("1.3.6.1.4.1.57264.1.1")
"""Who vouched for an identity, in a certificate (https://github.com/sigstore/fulcio/blob/main/docs/oid-info.md)."""


def proven(content: bytes) -> tuple[bytes, str, str]:
    """Return what a signature file signs, the identity that did, and the issuer; `ValueError` when it is not proven.

    The log's entry proves that the certificate was valid when it signed.
    """
    logging.getLogger("sigstore").setLevel(logging.ERROR)  # it warns that it stays offline
    try:
        bundle = Bundle.from_json(content)
        extensions = bundle.signing_certificate.extensions
        names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        issuer = extensions.get_extension_for_oid(ISSUER).value.public_bytes().decode()
        identity = next(str(name.value) for name in names)
        _, payload = Verifier.production(offline=True).verify_dsse(bundle, Identity(identity=identity, issuer=issuer))
    except (Error, x509.ExtensionNotFound, x509.DuplicateExtension, LookupError, TypeError, OSError) as error:
        raise ValueError(str(error).strip().partition("\n")[0] or type(error).__name__) from error
    return payload, identity, issuer
