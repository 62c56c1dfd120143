"""Another processor by emulation: Python and ONNX Runtime run under `qemu-user`. No timing is taken from it."""

import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import onnx
import onnxruntime as ort
from pydantic import Field

from tasks.data.dataset import Split
from tasks.errors import StageError
from tasks.frozen import Frozen, Number
from tasks.portability.predict import compare
from tasks.runtime.calls import Arrays, Calls, calls
from tasks.runtime.libraries import operator_libraries
from tasks.runtime.session import open_session
from tasks.signature import Signature

Target = Literal["x86-avx2", "arm64"]

ARM64_ROOT = "GAUNTLET_ARM64_ROOT"
"""The environment variable that names the folder which `.ci/arm64` fills."""
VERSION = r'__version__ = "([^"]*)"'
SCRIPT = Path(__file__).with_name("answer.py")
BATCH = 8


class Emulated(Frozen):
    """The model under one emulated processor, beside this one, on the same images."""

    target: Target
    runtime: str = Field(description="what ran, or `unavailable: reason`")
    images: int = Field(description="0 where it is unavailable")
    sqnr_db: Number | None
    top1_agreement: Number | None
    accuracy: Number | None = Field(description="None without labels")
    accuracy_here: Number | None

    @property
    def drop(self) -> float | None:
        """Accuracy lost there; without labels, the share of answers that are others."""
        if self.accuracy is not None and self.accuracy_here is not None:
            return self.accuracy_here - self.accuracy
        return None if self.top1_agreement is None else 1 - self.top1_agreement


def arm64_root() -> Path:
    """Return the folder with an Arm Python and ONNX Runtime, which need not exist."""
    return Path(os.environ.get(ARM64_ROOT) or Path.home() / ".cache" / "onnx-gauntlet" / "arm64")


def state(target: Target) -> str:
    """Return what would run there, or `unavailable: reason`; it is part of the identity of work that emulates."""
    if operator_libraries():
        return "unavailable: an emulated processor is not given operator_libraries"
    qemu = {"x86-avx2": "qemu-x86_64", "arm64": "qemu-aarch64"}[target]
    if shutil.which(qemu) is None:
        return f"unavailable: {qemu} is not installed (Debian: qemu-user)"
    if target == "x86-avx2":
        if platform.machine() != "x86_64":
            return "unavailable: the Python of this environment is not an x86-64 one"
        return f"onnxruntime {ort.__version__} as Haswell"
    version = arm64_root() / "site" / "onnxruntime" / "__init__.py"
    if not version.is_file():
        return f"unavailable: no Arm runtime in {arm64_root()} (make it with .ci/arm64)"
    return f"onnxruntime {found[1] if (found := re.search(VERSION, version.read_text())) else '?'} as Cortex-A72"


def emulated(target: Target, runtime: str, model: Path, split: Split, *, images: int, timeout_s: float) -> Emulated:
    """Run the first images of a split there and here.

    Args:
        target: the processor.
        runtime: what `state` said of it.
        model: an ONNX file with a signature.
        split: the images.
        images: how many.
        timeout_s: for the emulated run.
    """
    nothing = {"sqnr_db": None, "top1_agreement": None, "accuracy": None, "accuracy_here": None}
    if runtime.startswith("unavailable"):
        return Emulated(target=target, runtime=runtime, images=0, **nothing)
    made = calls(open_session(model), split.take(slice(0, images)))
    try:
        there = answers(target, model, made, batch=BATCH, timeout_s=timeout_s)
    except subprocess.TimeoutExpired:  # an emulator is slow: that says nothing of the model
        why = f"unavailable: no answer within {timeout_s:g} s; raise portability.timeout_s or lower portability.images"
        return Emulated(target=target, runtime=why, images=0, **nothing)
    labels = None if split.labels is None else split.labels[:images]
    found = compare(there, made.run(BATCH), labels, Signature.read(onnx.load(model, load_external_data=False)))
    return Emulated(
        target=target,
        runtime=runtime,
        images=len(made),
        sqnr_db=found.sqnr_db,
        top1_agreement=found.top1_agreement,
        accuracy=found.accuracy,
        accuracy_here=found.other_accuracy,
    )


def answers(target: Target, model: Path, samples: Calls, *, batch: int, timeout_s: float) -> Arrays:
    """Return the model's outputs for all samples, by name, shape (n, ...), as that processor computes them.

    Raises:
        StageError: when it crashes.
        subprocess.TimeoutExpired: when it is not done in time.
    """
    size = samples.batch(batch)
    starts = range(0, len(samples), size)
    with tempfile.TemporaryDirectory() as folder:
        inputs, outputs = Path(folder) / "inputs.npz", Path(folder) / "outputs.npz"
        feeds = [samples.feed(start, size) for start in starts]
        flat = {f"{call}/{name}": array for call, feed in enumerate(feeds) for name, array in feed.items()}
        np.savez(inputs, allow_pickle=False, **flat)
        _run([*_command(target), str(SCRIPT), str(model), str(inputs), str(outputs)], target, timeout_s)
        with np.load(outputs, allow_pickle=False) as file:
            made = {key: file[key] for key in file.files}
    names = dict.fromkeys(key.split("/", 1)[1] for key in made)
    parts: Mapping[str, Sequence[np.ndarray]] = {n: [made[f"{i}/{n}"] for i in range(len(starts))] for n in names}
    whole = np.stack if samples.whole else np.concatenate
    return {name: whole(arrays)[: len(samples)] for name, arrays in parts.items()}


def _command(target: Target) -> list[str]:
    if target == "x86-avx2":
        return ["qemu-x86_64", "-cpu", "Haswell", sys.executable]
    root = arm64_root()
    python = next(iter(sorted((root / "usr" / "bin").glob("python3.[0-9]*"))))
    return ["qemu-aarch64", "-cpu", "cortex-a72", "-L", str(root), "-E", f"PYTHONPATH={root / 'site'}", str(python)]


def _run(command: list[str], target: Target, timeout_s: float) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise StageError(f"{target} ended with code {done.returncode}: {last[:300]}")
