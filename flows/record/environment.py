"""The machine and packages of a run: what decides whether two runs' numbers can be compared."""

import contextlib
import importlib.metadata
import os
import platform
import re
import socket

import psutil

from gauntlet.core.frozen import JsonObject
from gauntlet.runtime.processor import Processor
from gauntlet.runtime.resources import cgroup_quota_cores, usable_threads


def environment() -> JsonObject:
    """Return machine, processor and package versions."""
    processor = Processor.current()
    return {
        "host": socket.gethostname(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "processor": processor.name,
        "instructions": [*processor.instructions],
        "cores": os.cpu_count(),
        "usable_threads": usable_threads(),
        "cgroup_quota_cores": cgroup_quota_cores(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "packages": {**package_versions()},
    }


def package_versions() -> dict[str, str]:
    """Return the versions of the packages that this project asks for, as far as they are installed."""
    versions = {}
    for requirement in importlib.metadata.requires("onnx-gauntlet") or ():
        name = re.split(r"[^\w.-]", requirement)[0]
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions
