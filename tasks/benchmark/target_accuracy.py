"""Check a candidate's accuracy on a deployment target before it races there."""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import onnx

from gauntlet.core.arrays import NamedArrays, read_arrays, write_arrays
from gauntlet.core.report import Check
from gauntlet.core.signature import Signature
from gauntlet.datasets import read_split
from gauntlet.datasets.golden import Golden, predict_split
from gauntlet.datasets.state_sequence import run_sequence, stacked
from gauntlet.problems.accuracy_checks import accuracy_checks
from gauntlet.problems.accuracy_comparison import AccuracyLimits, compare_accuracy
from gauntlet.problems.sequence_comparison import compare_sequence, sequence_checks
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

        As in the stage `accuracy`, noise is measured against the network that the candidate was made from, and a model
        with states runs over sequences, fed its own.

        Raises:
            WorkerFailed: when the target fails.
        """
        golden, split = Golden.load(self.golden), read_split(self.test)
        own = Golden.load(self.own_goldens[candidate]) if candidate in self.own_goldens else None
        signature = Signature.read(onnx.load(model, load_external_data=False))
        with WorkerClient(target.command()) as worker, tempfile.TemporaryDirectory() as folder:
            inputs, results = Path(folder) / "inputs.npz", Path(folder) / "outputs.npz"
            write_outputs = {"do": "write_outputs", "batch": BATCH, "path": str(results), "inputs": str(inputs)}

            def predict(samples: NamedArrays) -> NamedArrays:
                write_arrays(inputs, samples)
                worker.request(write_outputs, timeout_s)
                return read_arrays(results)

            write_arrays(inputs, split.take(slice(0, 1)))
            worker.load(model, inputs, threads, timeout_s, target.options())
            outputs = predict_split(predict, split, batch_size=SAMPLES_AT_ONCE)
            fed = {"sequence": (own or golden).sequence, "long_sequence": (own or golden).long_sequence}
            sequences = {kind: each for kind, each in fed.items() if each is not None}
            steps = {k: list(run_sequence(predict, split, s.positions, signature)) for k, s in sequences.items()}
        facts = compare_accuracy(golden, signature, outputs, own.test_outputs if own else None)
        checks = accuracy_checks(self.limits, facts, "leave this target out: the same file is more accurate elsewhere")
        for kind, sequence in sequences.items():
            compared = compare_sequence(signature, sequence, stacked(steps[kind]))
            checks += tuple(sequence_checks(self.limits, compared, kind))
        return checks
