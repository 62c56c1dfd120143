"""Copy a bundle out of the store, as a folder or a `.zip`, signed if there is a key."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gauntlet.bundle.bundle import Bundle, archive
from gauntlet.core.errors import ConfigError
from gauntlet.core.kinds import required


def deliver(source: Path, target: Path, private_key: Path | None = None) -> Bundle:
    """Copy a bundle to `target`, a `.zip` by its suffix or else a new folder, and sign the copy; return it opened.

    Raises:
        ConfigError: when `target` exists, its folder does not, the bundle is damaged, or the key cannot be used.
    """
    with made_complete(target, "--out") as made:
        bundle, folder = whole_bundle(source), made.with_name("unpacked")
        shutil.copytree(bundle.folder, folder)
        if private_key is not None:
            required("signature", "sign", "--key")(Bundle.open(folder), private_key)
        if target.suffix == ".zip":
            archive(folder, made)
        else:
            folder.rename(made)
    return Bundle.open(target)


def whole_bundle(source: Path) -> Bundle:
    """Open a bundle; `ConfigError` when it is damaged."""
    bundle = Bundle.open(source)
    for line in bundle.damage():
        raise ConfigError(f"{source}: {line}. Fix: run again")
    return bundle


@contextmanager
def made_complete(target: Path, option: str) -> Iterator[Path]:
    """Yield a path for a new file or folder, which appears at `target` complete or not at all.

    Raises:
        ConfigError: when `target` exists, or its folder does not; `option` of the command line named it.
    """
    if target.exists():
        raise ConfigError(f"{target}: it exists. Fix: remove it, or choose another {option}")
    if not target.parent.is_dir():
        raise ConfigError(f"{target.parent}: no such folder")
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as scratch:
        made = Path(scratch) / "made"
        yield made
        made.rename(target)
