"""Where a run ran: enough to know whether another run's numbers can be compared with it."""

import importlib.metadata
import os
import platform
import re
import socket
from pathlib import Path

import psutil

from tasks.frozen import JsonObject
from tasks.runtime.threads import cgroup_quota_cores, usable_threads

PACKAGES = (
    "numpy",
    "onnx",
    "onnxruntime-gpu",
    "onnxoptimizer",
    "onnxsim",
    "onnxslim",
    "torch",
    "torchvision",
    "prefect",
    "mlflow",
)
INSTRUCTIONS = ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_int8", "asimddp", "i8mm")


def environment() -> JsonObject:
    """Return machine, processor and package versions."""
    cpu, flags = processor()
    return {
        "host": socket.gethostname(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "processor": cpu,
        "instructions": [name for name in INSTRUCTIONS if name in flags],
        "cores": os.cpu_count(),
        "usable_threads": usable_threads(),
        "cgroup_quota_cores": cgroup_quota_cores(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "packages": {name: importlib.metadata.version(name) for name in PACKAGES},
    }


def processor(path: Path = Path("/proc/cpuinfo")) -> tuple[str, set[str]]:
    """Return the processor's name and instruction set extensions, as far as the system tells them."""
    try:
        text = path.read_text()
    except OSError:
        return platform.processor() or platform.machine(), set()
    name = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", text, re.MULTILINE)
    return name[1] if name else platform.machine(), set(flags[1].split()) if flags else set()
