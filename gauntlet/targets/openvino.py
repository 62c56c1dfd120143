"""OpenVINO's own runtime."""

from typing import ClassVar, Literal

from pydantic import Field

from gauntlet.core.frozen import JsonObject
from gauntlet.targets.base import BaseTarget, Precision


class OpenVino(BaseTarget):
    """OpenVINO, its precision pinned.

    Unpinned (`default`) it computes a float32 model in bfloat16 wherever the processor can. A user who does not know
    that takes it for float32, so that is what such a target states, and the check of its answers tells the truth.
    """

    kind: Literal["openvino"] = "openvino"
    env: str | None = "openvino"
    precision: Literal["f32", "bf16", "f16", "int8", "default"] = Field(
        "f32", description="int8 runs a quantised model's integer part as such, and the rest of it in f32"
    )
    device: Literal["CPU", "GPU", "NPU"] = "CPU"
    properties: dict[str, str] = Field(default_factory=dict, description="further properties of OpenVINO, by name")
    engine: ClassVar[str] = "gauntlet.runtime.engines.openvino"

    @property
    def declared_precision(self) -> Precision:
        """The precision that is asked for, or that a user believes to get."""
        return "f32" if self.precision == "default" else self.precision

    def name_suffix(self) -> tuple[str, ...]:
        """Return the precision, the device where it is not the CPU, and the properties."""
        device = () if self.device == "CPU" else (self.device.lower(),)
        return (self.precision, *device, *(f"{name}={value}" for name, value in sorted(self.properties.items())))

    def engine_options(self) -> JsonObject:
        """Return device and properties, the pinned precision among them."""
        pinned = {"int8": "f32"}.get(self.precision, self.precision)
        hint = {} if self.precision == "default" else {"INFERENCE_PRECISION_HINT": pinned}
        return {"device": self.device, "properties": {**self.properties, **hint}}
