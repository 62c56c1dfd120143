"""What the callers of a bundle may rely on: `contract.json`."""

from typing import Literal

from pydantic import Field

from gauntlet.core.frozen import Frozen, JsonObject, Number
from gauntlet.core.signature import Signature

DEFAULT_BATCH = 8
"""Samples per call where no latency is known."""


class BatchLatency(Frozen):
    """Latency of one call at one batch size, as measured in the confirming race, on the machine of the run."""

    batch: int = Field(ge=1)
    median_ms: Number = Field(gt=0)


FILE_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
"""Of a model or run: files are named by it, so a bundle cannot name a folder of its choice."""


class Contract(Frozen):
    """The model's name, its signature, and where it was proven to be the fastest."""

    schema_version: Literal[1] = 1
    name: str = Field(pattern=FILE_NAME, description="the model's name: `name` of the run's configuration")
    run_id: str = Field(pattern=FILE_NAME)
    candidate: str = Field(description="the winner's name in the run")
    signature: Signature
    target: str = Field(description="the execution target that it won on")
    session: dict[str, str | int | bool] | None = Field(
        None, description="settings of ONNX Runtime's SessionOptions, by name; None for another kind of target"
    )
    options: JsonObject = Field(default_factory=dict, description="without `session`: the target's kind and options")
    threads: int | None = Field(None, ge=1, description="without `session`: the threads of a call in the race")
    latencies: tuple[BatchLatency, ...] = ()
    temperature: Number | None = Field(
        None,
        gt=0,
        description="divides a classifier's scores before the softmax, for a calibrated confidence; fitted on held-out "
        "samples with the network that the model was made from",
    )
    golden_tolerance: Number = Field(
        0.02,
        description="largest difference from a golden output on another processor, over the output's largest magnitude",
    )
    runtime: str = Field("", description="runtime that computed the golden outputs, with its version")
    processor: str = Field("", description="name of the processor that computed the golden outputs")
    instructions: tuple[str, ...] = Field((), description="its instruction set extensions that kernels use")

    @property
    def best_batch(self) -> int:
        """The measured batch size with the most samples a second."""
        fastest = max(self.latencies, key=lambda row: row.batch / row.median_ms, default=None)
        return fastest.batch if fastest else DEFAULT_BATCH
