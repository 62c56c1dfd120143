"""Processors as values, and one without VNNI that really computes: Python and ONNX Runtime under `qemu-user`."""

import platform
import shutil
import subprocess
import sys
from pathlib import Path

import needs
import numpy as np
import onnx
from onnx import numpy_helper

from gauntlet.runtime.processor import Processor

HASWELL = Processor("x86_64", frozenset({"sse4_1", "avx", "avx2", "fma"}))
"""Its sums saturate."""
CASCADE_LAKE = Processor("x86_64", HASWELL.flags | {"avx512f", "avx512bw", "avx512_vnni"})
AS_HASWELL = ("qemu-x86_64", "-cpu", "Haswell", "-E", "NPY_DISABLE_CPU_FEATURES=X86_V3")
"""In front of a command. What it starts in turn is not emulated, and `/proc/cpuinfo` is this machine's.

NumPy sorts without AVX2: QEMU 7.2 gathers wrong elements (`vgatherdpd`), so `argsort` is wrong or crashes.
"""
EMULATOR_CRASH = "qemu: uncaught target signal"
ONE_CORE = "import os; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])\n"
"""Threads that spin while they wait are emulated as well."""


def on_haswell(code: str, *arguments: object, timeout_s: float = 600) -> str:
    """Run Python code there; return what it printed. Skips the test where there is no emulator."""
    needs_haswell()
    command = [*AS_HASWELL, sys.executable, "-c", ONE_CORE + code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    if EMULATOR_CRASH in done.stderr:  # now and then it crashes itself, with several threads
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def with_largest_weights(quantized: Path) -> Path:
    """Write a network with the largest INT8 weights that there are, side by side: their products leave an int16."""
    proto = onnx.load(quantized)
    for tensor in proto.graph.initializer:
        if tensor.data_type == onnx.TensorProto.INT8 and tensor.dims:
            signs = np.where(numpy_helper.to_array(tensor) < 0, -127, 127).astype(np.int8)
            tensor.CopyFrom(numpy_helper.from_array(signs, tensor.name))
    onnx.save(proto, path := quantized.with_name("saturating.onnx"))
    return path


def needs_haswell() -> None:
    """Skip the test where there is no emulator; in CI, fail it."""
    if platform.machine() != "x86_64" or shutil.which(AS_HASWELL[0]) is None:
        needs.missing(f"{AS_HASWELL[0]} on x86-64 (Debian: qemu-user)")
