"""A home with the environments of other runtimes, which come from package registries."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import needs
import pytest

from gauntlet.core.errors import StageError
from gauntlet.targets import environments


@contextmanager
def home_with(names: Iterable[str], folder: Path) -> Iterator[Path]:
    """Install environments into a folder, or into `GAUNTLET_TEST_HOME`, which keeps them between runs."""
    root = Path(os.environ.get("GAUNTLET_TEST_HOME") or folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GAUNTLET_HOME", str(root))
        patch.setattr(environments, "TIMEOUT_S", 110)  # the test's own limit would make a failure of a slow network
        try:
            for name in names:
                environments.make(environments.folder(name), environments.known()[name], print)
        except StageError as error:
            needs.missing(f"cannot be installed here: {error}")
        yield root
