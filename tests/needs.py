"""What tests need beside Python packages. Without it they skip and say why; in CI they fail."""

import os
import shutil
from typing import NoReturn

import pytest


def missing(reason: str) -> NoReturn:
    """Skip the test, or fail it where `CI` is set: there, everything but special hardware is installed."""
    if os.environ.get("CI", "").lower() in ("1", "true"):
        pytest.fail(f"{reason}; CI must install it")
    pytest.skip(reason, allow_module_level=True)


def chromium() -> str:
    """Return the path of Chromium."""
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    return path or missing("chromium is not on the PATH")
