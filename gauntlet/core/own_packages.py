"""The packages that this project installs beside `gauntlet`, whose names others use, too."""

import importlib.util
from pathlib import Path

from gauntlet.core.errors import ConfigError

FOLDER = Path(__file__).parents[2]
NAMES = ("configs", "flows", "frameworks", "serving", "tasks", "wings")


def require_own_packages() -> None:
    """Check that no other module is imported in place of one of ours, such as a `tasks.py` in the user's folder.

    Raises:
        ConfigError: with the file that would be imported.
    """
    for name in NAMES:
        found, own = importlib.util.find_spec(name), FOLDER / name / "__init__.py"
        if own.is_file() and found is not None and found.origin and not own.samefile(found.origin):
            raise ConfigError(
                f"{found.origin}: Python imports it in place of onnx-gauntlet's package {name!r}. "
                "Fix: rename it, or start from a folder without it"
            )
