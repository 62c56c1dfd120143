"""Expected outputs of a model: those of its graph as written, on the CPU, without optimization."""

import math
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gauntlet.core.arrays import Array
from gauntlet.core.errors import StageError, one_line
from gauntlet.core.frozen import JsonObject
from gauntlet.metrics.output_noise import worst_noise_db
from gauntlet.onnx_model.macs import ModelMacs, read_model_macs
from gauntlet.race.precision import FLOOR_DB, worst_sqnr_db
from gauntlet.runtime.subprocess_runner import SubprocessFailed, run_in_subprocess
from gauntlet.runtime.worker_client import WorkerClient, WorkerFailed
from gauntlet.targets.ort import OrtCpu

MAX_EXTRA_NOISE_DB = 3.0
"""How much noise a quantized model may have above that of its own arithmetic computed exactly."""
READING_BYTES = 8 << 30
WorkerRun = tuple[dict[str, Any], dict[str, Any], list[Array]]
"""A worker's reply to loading, its placement, and the outputs."""


@dataclass(frozen=True)
class ExpectedOutputs:
    """A model's expected outputs."""

    outputs: list[Array]
    reference: list[Array]
    """Outputs of the reference model."""
    fixed_batch: int | None
    file: ModelMacs

    @property
    def quantized(self) -> bool:
        """Whether the file is a quantized model."""
        return self.file.quantized

    @property
    def batches(self) -> tuple[int, ...]:
        """The batch sizes to run a target at: 1 and, where the model does not fix the batch, all samples at once."""
        samples = max(map(len, self.outputs), default=1)
        return (1,) if self.fixed_batch or samples == 1 else (1, samples)

    @property
    def exact_db(self) -> float:
        """SQNR of the outputs against the reference; infinite where they are equal."""
        return worst_sqnr_db(self.outputs, self.reference)

    @property
    def least_db(self) -> float:
        """Least SQNR of a target's outputs against the reference, for a quantized model."""
        return _least(self.exact_db)

    @property
    def least_slices_db(self) -> float:
        """The same limit for the worst slices of an output, which a sum over all of its values may hide."""
        return _least(worst_noise_db(self.outputs, self.reference))

    @classmethod
    def of(
        cls, model: Path, inputs: Path, timeout_s: float, reference: "ExpectedOutputs | None" = None
    ) -> "ExpectedOutputs":
        """Compute the outputs in child processes; without a reference, the model is its own.

        Raises:
            StageError: when the file is not a model, or ONNX Runtime rejects it or the inputs, or crashes.
        """
        exact = OrtCpu(level="off")
        try:
            read = run_in_subprocess(read_model_macs, model, inputs, timeout_s=timeout_s, memory_bytes=READING_BYTES)
            loaded, _, outputs = run_on_worker(model, exact.command(), exact.options(), inputs, 1, timeout_s)
        except (WorkerFailed, SubprocessFailed) as error:
            raise StageError(f"{model}: {one_line(error)}") from error
        return cls(outputs, reference.outputs if reference else outputs, loaded["fixed_batch"], read.value)


def _least(exact_db: float) -> float:
    """Return the limit where exact arithmetic has so much; float32 has noise of its own."""
    return FLOOR_DB["int8"] if math.isinf(exact_db) else min(exact_db - MAX_EXTRA_NOISE_DB, FLOOR_DB["f32"])


def run_on_worker(
    model: Path,
    command: tuple[str, ...],
    options: JsonObject,
    inputs: Path,
    threads: int,
    timeout_s: float,
    batches: Sequence[int] = (1,),
) -> WorkerRun:
    """Return a new worker's replies to loading and placement, and its outputs for all inputs at every batch size.

    Outputs end at the first batch size after the first that fails: the race reports why, and at which batch sizes.
    """
    with WorkerClient(command) as worker, tempfile.TemporaryDirectory() as folder:
        loaded = worker.load(model, inputs, threads, timeout_s, options)
        placement = worker.request({"do": "placement"}, timeout_s)
        path, outputs = Path(folder) / "outputs.npz", list[Array]()
        for batch in batches:
            try:
                names = worker.request({"do": "write_outputs", "batch": batch, "path": str(path)}, timeout_s)["outputs"]
            except WorkerFailed:
                if not outputs:
                    raise
                break
            with np.load(path, allow_pickle=False) as file:
                outputs += [file[name] for name in names]
        return loaded, placement, outputs
