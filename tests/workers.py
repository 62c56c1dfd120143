"""What the workers of one pytest session share, and what each has for itself."""

import os
import shutil
import tempfile
from collections.abc import Callable
from multiprocessing.util import Finalize
from pathlib import Path

import pytest

WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")


def begin() -> None:
    """Give this worker a folder of its own for temporary files, and with it a lock of the host of its own.

    What tests measure decides nothing, so none needs to wait for the benchmark of another worker.
    """
    if WORKER and not tempfile.gettempdir().endswith(f"-{WORKER}"):
        os.environ["TMPDIR"] = tempfile.tempdir = tempfile.mkdtemp(prefix="gauntlet-", suffix=f"-{WORKER}")
        os.environ["GAUNTLET_HOST_LOCK"] = str(Path(tempfile.tempdir, "host.lock"))
        Finalize(None, shutil.rmtree, (tempfile.tempdir, True), exitpriority=-200)  # multiprocessing's own go before


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """Return a folder that `make` has filled, once for all workers; whoever comes meanwhile waits."""
    from flows.record.locks import locked  # it reads GAUNTLET_HOST_LOCK when it is imported

    place = factory.getbasetemp()
    folder = (place.parent if WORKER else place) / name
    with locked(folder.with_suffix(".lock")):
        if not (folder / "made").exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            (folder / "made").touch()
    return folder
