"""What the callers of a bundle may rely on: `contract.json`."""

from typing import Literal

from pydantic import Field

from gauntlet.core.frozen import Frozen, Number
from gauntlet.core.signature import Signature


class BatchLatency(Frozen):
    """Latency of one call at one batch size, as measured in the confirming race, on the machine of the run."""

    batch: int = Field(ge=1)
    median_ms: Number


class Contract(Frozen):
    """The model's name, its signature, and where it was proven to be the fastest."""

    schema_version: Literal[1] = 1
    name: str = Field(description="the model's name: `name` of the run's configuration")
    run_id: str
    candidate: str = Field(description="the winner's name in the run")
    signature: Signature
    target: str = Field(description="the execution target that it won on")
    session: dict[str, str | int | bool] | None = Field(
        None, description="settings of ONNX Runtime's SessionOptions, by name; None for another kind of target"
    )
    latencies: tuple[BatchLatency, ...] = ()
