"""Whether a candidate still answers right enough on a target that it may be shipped on, asked before it races there."""

import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from tasks.accuracy import AccuracyConfig, compared, still_right
from tasks.benchmark.client import WorkerClient
from tasks.data.dataset import batches
from tasks.data.golden import Golden
from tasks.data.read import read_split
from tasks.report import Check
from tasks.signature import Signature
from tasks.statistics import Array
from tasks.targets.base import BaseTarget

BATCH = 16
SAMPLES_AT_ONCE = 512
"""A worker holds no more samples than these."""


@dataclass(frozen=True)
class AccuracyGate:
    """The accuracy stage's limits, and what its answers are compared with."""

    limits: AccuracyConfig
    golden: Path
    test: Path

    def checks(self, model: Path, target: BaseTarget, *, threads: int, timeout_s: float) -> tuple[Check, ...]:
        """Let the target answer all test samples; judge the accuracy lost against the FP32 model's answers.

        Raises:
            WorkerFailed: when the target breaks.
        """
        signature = Signature.read(onnx.load(model, load_external_data=False))
        answers = self._answers(model, target, threads, timeout_s)
        return still_right(self.limits, compared(Golden.load(self.golden), signature, answers))

    def _answers(self, model: Path, target: BaseTarget, threads: int, timeout_s: float) -> dict[str, Array]:
        parts = []
        with WorkerClient(target.command()) as worker, tempfile.TemporaryDirectory() as folder:
            inputs, outputs = Path(folder) / "inputs.npz", Path(folder) / "answers.npz"
            for samples in batches(read_split(self.test), SAMPLES_AT_ONCE):
                np.savez(inputs, allow_pickle=False, **samples)
                worker.load(model, inputs, threads, timeout_s, target.options())
                worker.ask({"do": "answers", "batch": BATCH, "path": str(outputs)}, timeout_s)
                with np.load(outputs, allow_pickle=False) as file:
                    parts.append({name: file[name] for name in file.files})
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
