"""Emulation of other processors with `qemu-user`. Its timings are not used."""

import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Literal

import numpy as np
import onnxruntime as ort
from pydantic import Field

from gauntlet.core.arrays import NamedArrays
from gauntlet.core.errors import StageError
from gauntlet.core.frozen import Frozen, Number
from gauntlet.datasets.splits import Split
from gauntlet.runtime.batched_inference import BatchedInference, batched_inference
from gauntlet.runtime.operator_libraries import operator_libraries
from gauntlet.runtime.session import open_session
from wings.portability.prediction import compare_predictions, joined

EmulatedProcessor = Literal["x86-avx2", "arm64"]

ARM64_ROOT = "GAUNTLET_ARM64_ROOT"  # environment variable: the folder that `.ci/arm64` fills
SCRIPT = Path(__file__).with_name("run_emulated.py")
BATCH = 8


class EmulationResult(Frozen):
    """The model on one emulated processor and on this one, with the same images."""

    target: EmulatedProcessor
    runtime: str = Field(description="emulated runtime and processor, or `unavailable: reason`")
    images: int = Field(description="0 where the emulator is unavailable")
    sqnr_db: Number | None
    agreement: Number | None
    accuracy: Number | None = Field(description="None without labels")
    accuracy_here: Number | None

    @property
    def drop(self) -> float | None:
        """Accuracy lost by emulation; without labels, the share of changed predictions."""
        if self.accuracy is not None and self.accuracy_here is not None:
            return self.accuracy_here - self.accuracy
        return None if self.agreement is None else 1 - self.agreement


def arm64_root() -> Path:
    """Return the folder of an Arm Python and ONNX Runtime, which may not exist."""
    return Path(os.environ.get(ARM64_ROOT) or Path.home() / ".cache" / "onnx-gauntlet" / "arm64")


def emulator_status(target: EmulatedProcessor) -> str:
    """Return the emulated runtime and processor, or `unavailable: reason`; part of the cache key of the stage."""
    if operator_libraries():
        return "unavailable: emulated processors do not support operator_libraries"
    qemu = {"x86-avx2": "qemu-x86_64", "arm64": "qemu-aarch64"}[target]
    if shutil.which(qemu) is None:
        return f"unavailable: {qemu} is not installed (Debian: qemu-user)"
    if target == "x86-avx2":
        if platform.machine() != "x86_64":
            return "unavailable: this environment's Python is not built for x86-64"
        return f"onnxruntime {ort.__version__} as Haswell"
    version = arm64_root() / "site" / "onnxruntime" / "__init__.py"
    if not version.is_file():
        return f"unavailable: no Arm runtime in {arm64_root()} (create it with .ci/arm64)"
    match = re.search(r'__version__ = "([^"]*)"', version.read_text())
    return f"onnxruntime {match[1] if match else '?'} as Cortex-A72"


def emulated(
    target: EmulatedProcessor, runtime: str, model: Path, split: Split, *, images: int, timeout_s: float
) -> EmulationResult:
    """Run the first images of a split on an emulated processor and on this one, and compare the outputs.

    `runtime` is the target's `emulator_status`; `timeout_s` limits the emulated run.
    """
    unknown = dict.fromkeys(("sqnr_db", "agreement", "accuracy", "accuracy_here"))
    result = EmulationResult(target=target, runtime=runtime, images=0, **unknown)
    if runtime.startswith("unavailable"):
        return result
    inference = batched_inference(open_session(model), split.take(slice(0, images)))
    try:
        outputs = emulated_outputs(target, model, inference, batch=BATCH, timeout_s=timeout_s)
    except subprocess.TimeoutExpired:  # emulation is slow; a timeout is no fault of the model
        fix = "raise portability.timeout_s"
        return result.replace(runtime=f"unavailable: timed out after {timeout_s:g} s; {fix}")
    measured = compare_predictions(outputs, inference.run(BATCH), model, split)
    return result.replace(images=len(inference), **dict(zip(unknown, measured, strict=True)))


def emulated_outputs(
    target: EmulatedProcessor, model: Path, samples: BatchedInference, *, batch: int, timeout_s: float
) -> NamedArrays:
    """Return the model's outputs for all samples on an emulated processor, by name, shape (n, ...).

    Raises:
        StageError: when the emulated process crashes.
        subprocess.TimeoutExpired: when it exceeds the time limit.
    """
    size = samples.batch(batch)
    feeds = [samples.feed(start, size) for start in range(0, len(samples), size)]
    calls: list[NamedArrays] = [{} for _ in feeds]
    with tempfile.TemporaryDirectory() as folder:
        inputs, outputs = Path(folder) / "inputs.npz", Path(folder) / "outputs.npz"
        flat = {f"{call}/{name}": array for call, feed in enumerate(feeds) for name, array in feed.items()}
        np.savez(inputs, allow_pickle=False, **flat)
        command = [*_python(target), str(SCRIPT), str(model), str(inputs), str(outputs)]
        process = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
        if process.returncode:
            last_line = (process.stderr.strip().splitlines() or ["no message"])[-1]
            raise StageError(f"{target} exited with code {process.returncode}: {last_line[:300]}")
        with np.load(outputs, allow_pickle=False) as file:
            for key in file.files:
                call, name = key.split("/", 1)
                calls[int(call)][name] = file[key]
    return joined(samples, calls)


def _python(target: EmulatedProcessor) -> list[str]:
    if target == "x86-avx2":
        return ["qemu-x86_64", "-cpu", "Haswell", sys.executable]
    root = arm64_root()
    python = next(iter(sorted((root / "usr" / "bin").glob("python3.[0-9]*"))))
    return ["qemu-aarch64", "-cpu", "cortex-a72", "-L", str(root), "-E", f"PYTHONPATH={root / 'site'}", str(python)]
