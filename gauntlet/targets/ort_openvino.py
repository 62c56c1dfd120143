"""ONNX Runtime with Intel's OpenVINO as its provider."""

import json
from typing import ClassVar, Literal

from pydantic import Field

from gauntlet.core.frozen import JsonObject
from gauntlet.targets.base import Precision
from gauntlet.targets.ort import OrtTarget


class OrtOpenVino(OrtTarget):
    """The OpenVINO provider; its package excludes other onnxruntime packages, so it has an environment of its own."""

    kind: Literal["ort-openvino"] = "ort-openvino"
    env: str | None = "openvino"
    precision: Literal["f32", "bf16", "f16"] = Field("f32", description="of what the model leaves in floats")
    device_type: Literal["CPU", "GPU", "NPU"] = "CPU"
    provider: ClassVar[str] = "OpenVINOExecutionProvider"

    @property
    def declared_precision(self) -> Precision:
        """The precision that is asked for."""
        return self.precision

    def name_suffix(self) -> tuple[str, ...]:
        """Return the precision, and the device where it is not the CPU."""
        return (self.precision, *(() if self.device_type == "CPU" else (self.device_type.lower(),)))

    def provider_options(self) -> dict[str, str]:
        """Return device and precision."""
        config = {self.device_type: {"INFERENCE_PRECISION_HINT": self.precision}}
        return {"device_type": self.device_type, "load_config": json.dumps(config)}

    def engine_options(self) -> JsonObject:
        """Return also which option takes the number of threads."""
        return super().engine_options() | {"threads_option": "num_of_threads"}
