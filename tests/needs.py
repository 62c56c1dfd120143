"""What tests need beside Python packages. Without it they skip and say why; in CI they fail."""

import os
import shutil
import sys
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

import pytest

from gauntlet.core.kinds import GROUP

PROJECT = Path(__file__).parents[1]


def missing(reason: str) -> NoReturn:
    """Skip the test, or fail it where `CI` is set: there, everything but special hardware is installed."""
    if os.environ.get("CI", "").lower() in ("1", "true"):
        pytest.fail(f"{reason}; CI must install it")
    pytest.skip(reason, allow_module_level=True)


def chromium() -> str:
    """Return the path of Chromium."""
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    return path or missing("chromium is not on the PATH")


def operator_library() -> Path:
    """Return a library of operators; its package, once imported, makes later processes read protobuf in pure Python."""
    return next(Path(find_spec("onnxruntime_extensions").origin).parent.glob("_extensions_pydll*.so")).resolve()


def every_wing() -> None:
    """Skip a test of pages that describe all wings where one of them was removed."""
    for point in entry_points(group=GROUP):
        place = PROJECT / point.module.replace(".", "/")
        if (
            point.dist
            and point.dist.name == "onnx-gauntlet"
            and not (place.is_dir() or place.with_suffix(".py").is_file())
        ):
            pytest.skip(f"{point.module} was removed")


def cpp_compiler() -> tuple[str, ...]:
    """Return the words that compile C++17 with ONNX Runtime's headers, without warnings."""
    places = (os.environ.get("ONNXRUNTIME_INCLUDE"), f"{sys.prefix}/include/onnxruntime", "/usr/include/onnxruntime")
    headers = next((p for p in places if p and Path(p, "onnxruntime_cxx_api.h").is_file()), None)
    compiler = shutil.which("g++") or missing("g++ is not on the PATH")
    headers = headers or missing("no C++ headers of ONNX Runtime (.ci/onnxruntime_headers)")
    return compiler, "-std=c++17", "-Wall", "-Wextra", "-Werror", "-isystem", headers
