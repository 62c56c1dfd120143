"""Copy a bundle out of the store, as a folder or a `.zip`, signed if there is a key."""

import shutil
import tempfile
from pathlib import Path

from gauntlet.bundle.bundle import Bundle, archive
from gauntlet.bundle.signing import sign
from gauntlet.core.errors import ConfigError


def deliver(source: Path, target: Path, private_key: Path | None = None) -> Bundle:
    """Copy a bundle to `target`, a `.zip` by its suffix or else a new folder, and sign the copy; return it opened.

    The copy appears complete or not at all.

    Raises:
        ConfigError: when `target` exists, its folder does not, the bundle is damaged, or the key cannot be used.
    """
    if target.exists():
        raise ConfigError(f"{target}: it exists. Fix: remove it, or choose another --out")
    if not target.parent.is_dir():
        raise ConfigError(f"{target.parent}: no such folder")
    bundle = Bundle.open(source)
    for line in bundle.damage():
        raise ConfigError(f"{source}: {line}. Fix: run again")
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as scratch:
        folder = Path(scratch) / target.name
        shutil.copytree(bundle.folder, folder)
        if private_key is not None:
            sign(Bundle.open(folder), private_key)
        if target.suffix == ".zip":
            archived = Path(scratch) / "bundle"
            archive(folder, archived)
            archived.rename(target)
        else:
            folder.rename(target)
    return Bundle.open(target)
