"""ONNX Runtime with Intel's OpenVINO as its provider."""

import json
from typing import ClassVar, Literal

from pydantic import Field

from gauntlet.core.frozen import JsonObject
from gauntlet.targets.ort import OrtTarget


class OrtOpenVino(OrtTarget):
    """The OpenVINO provider; its package excludes other onnxruntime packages, so it has its own environment."""

    kind: Literal["ort-openvino"] = "ort-openvino"
    env: str | None = "openvino"
    precision: Literal["f32", "bf16", "f16"] = Field("f32", description="of the part of a model that is in floats")
    provider: ClassVar[str] = "OpenVINOExecutionProvider"
    named: ClassVar[tuple[str, ...]] = ("precision",)

    def provider_options(self) -> dict[str, str]:
        """Return device and precision."""
        config = {"CPU": {"INFERENCE_PRECISION_HINT": self.precision}}
        return {"device_type": "CPU", "load_config": json.dumps(config)}

    def engine_options(self) -> JsonObject:
        """Return also the option for the number of threads."""
        return super().engine_options() | {"threads_option": "num_of_threads"}
