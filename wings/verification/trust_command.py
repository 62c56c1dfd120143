"""`gauntlet trust`: whose signatures bundles need before this home uses them."""

import argparse
import hashlib
import json
from pathlib import Path

from flows.cli.shared import plain
from flows.record.home import Home
from flows.record.locks import locked
from gauntlet.bundle.trust import home_keys, policy_file, trusted
from gauntlet.core.artifact import write_atomically
from gauntlet.core.errors import ConfigError
from wings.verification.library.signing import key_library


def list_keys(_: argparse.Namespace) -> int:
    """Print the keys that count."""
    where, _keys = trusted()
    keys = home_keys() if where == str(policy_file()) else {}
    unsigned = "every bundle is used, signed or not; ask for signatures with: gauntlet trust add PUB.pem"
    lines = [f"only bundles that a key of {where} has signed are used" if where else unsigned]
    print(plain("\n".join(lines + [f"{digest[:16]}  {name}" for digest, (name, _pem) in keys.items()])))  # noqa: T201
    return 0


def add_key(options: argparse.Namespace) -> int:
    """Trust a key: from now on, only bundles that a trusted key has signed are used."""
    pem = key_library().read_trusted(Path(options.key))
    with locked(Home.find().locks / "trust"):
        _save(home_keys() | {hashlib.sha256(pem).hexdigest(): (Path(options.key).name, pem.decode())})
    return list_keys(options)


def remove_key(options: argparse.Namespace) -> int:
    """Remove the key whose fingerprint begins so; without keys, every bundle is used again."""
    with locked(Home.find().locks / "trust"):
        keys = home_keys()
        others = {digest: key for digest, key in keys.items() if not digest.startswith(options.fingerprint)}
        if len(keys) - len(others) != 1:
            raise ConfigError(f"{options.fingerprint!r} names no single trusted key. Fix: gauntlet trust list")
        _save(others)
    return list_keys(options)


def _save(keys: dict[str, tuple[str, str]]) -> None:
    write_atomically(policy_file(), json.dumps(keys, indent=1), mode=0o600)
    if not keys:
        policy_file().unlink()
