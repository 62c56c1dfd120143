"""Check a candidate's accuracy on a deployment target before it races there."""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx

from gauntlet.core.report import Check
from gauntlet.core.signature import Signature
from gauntlet.datasets import read_split
from gauntlet.datasets.golden import Golden
from gauntlet.datasets.splits import batches
from gauntlet.problems.accuracy_comparison import AccuracyLimits, accuracy_checks, compare_accuracy, noise_check
from gauntlet.runtime.worker_client import WorkerClient
from gauntlet.targets.base import BaseTarget

BATCH = 16
SAMPLES_AT_ONCE = 512
"""Most samples that a worker holds at once."""


@dataclass(frozen=True)
class TargetAccuracy:
    """The accuracy limits, and the reference outputs to compare with."""

    limits: AccuracyLimits
    golden: Path
    test: Path
    own_goldens: Mapping[str, Path] = field(default_factory=dict)
    """Candidate -> the outputs of the pruned network that it was made from."""

    def checks(
        self, candidate: str, model: Path, target: BaseTarget, *, threads: int, timeout_s: float
    ) -> tuple[Check, ...]:
        """Run all test samples on the target; check the accuracy drop against the FP32 model, and the noise.

        As in the stage `accuracy`, noise is measured against the network that the candidate was made from.

        Raises:
            WorkerFailed: when the target fails.
        """
        parts = []
        with WorkerClient(target.command()) as worker, tempfile.TemporaryDirectory() as folder:
            inputs, results = Path(folder) / "inputs.npz", Path(folder) / "outputs.npz"
            for samples in batches(read_split(self.test), SAMPLES_AT_ONCE):
                np.savez(inputs, allow_pickle=False, **samples)
                worker.load(model, inputs, threads, timeout_s, target.options())
                worker.request({"do": "write_outputs", "batch": BATCH, "path": str(results)}, timeout_s)
                with np.load(results, allow_pickle=False) as file:
                    parts.append({name: file[name] for name in file.files})
        outputs = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        signature = Signature.read(onnx.load(model, load_external_data=False))
        own = self.own_goldens.get(candidate)
        found = compare_accuracy(
            Golden.load(self.golden), signature, outputs, Golden.load(own).test_outputs if own else None
        )
        return *accuracy_checks(self.limits, found), *noise_check(self.limits, found)
