"""OpenVINO's own runtime, and ONNX Runtime with Intel's OpenVINO as its provider."""

import json
from typing import ClassVar, Literal

from pydantic import Field

from gauntlet.core.frozen import JsonObject
from gauntlet.targets.base import BaseTarget, Precision
from gauntlet.targets.environments import RuntimeEnvironment
from gauntlet.targets.ort import OrtTarget

ENVIRONMENT = RuntimeEnvironment(python=("numpy==2.4.6", "openvino==2026.4.1", "onnxruntime-openvino==1.24.1"))


class OpenVino(BaseTarget):
    """OpenVINO with a pinned precision.

    Unpinned (`default`), it computes a float32 model in bfloat16 where the processor can. Such a target declares
    float32, which users expect, and its check fails where that is wrong.
    """

    kind: Literal["openvino"] = "openvino"
    env: str | None = Field(
        "openvino", description="Python environment: name for `gauntlet targets install`, or folder"
    )
    precision: Literal["f32", "bf16", "f16", "int8", "default"] = Field(
        "f32", description="int8 runs the integer part of a quantized model as integers, and the rest in f32"
    )
    device: Literal["CPU", "GPU", "NPU"] = "CPU"
    properties: dict[str, str] = Field(default_factory=dict, description="further properties of OpenVINO, by name")
    known_options: ClassVar[tuple[JsonObject, ...]] = tuple(
        {"precision": name} for name in ("f32", "bf16", "f16", "int8", "default")
    )
    automatic: ClassVar[tuple[JsonObject, ...]] = ({"precision": "f32"}, {"precision": "bf16"})
    """As a provider of ONNX Runtime it is no faster, so `OrtOpenVino` has none."""
    int8_options: ClassVar[JsonObject] = {"qdq_placement": "inputs"}
    engine: ClassVar[str] = "wings.providers.openvino_engine"
    may_fork: ClassVar[bool] = True
    named: ClassVar[tuple[str, ...]] = ("precision",)
    named_entries: ClassVar[str] = "properties"
    set_elsewhere: ClassVar[dict[str, str]] = {"INFERENCE_NUM_THREADS": "benchmark.threads"}
    bundled_entries: ClassVar[frozenset[str]] = frozenset(
        {
            *("ENABLE_CPU_PINNING", "ENABLE_CPU_RESERVATION", "ENABLE_HYPER_THREADING", "SCHEDULING_CORE_TYPE"),
            *("PERFORMANCE_HINT", "NUM_STREAMS", "EXECUTION_MODE_HINT", "CPU_DENORMALS_OPTIMIZATION"),
        }
    )
    named_if_changed: ClassVar[dict[str, str]] = {"device": "{}"}

    @property
    def declared_precision(self) -> Precision:
        """The requested precision, or the one that a user expects."""
        return "f32" if self.precision == "default" else self.precision

    def engine_options(self) -> JsonObject:
        """Return the device and the properties, including the pinned precision unless they name one."""
        pinned = {"int8": "f32"}.get(self.precision, self.precision)
        hint = {} if self.precision == "default" else {"INFERENCE_PRECISION_HINT": pinned}
        return {"device": self.device, "properties": {**hint, **self.properties}}


class OrtOpenVino(OrtTarget):
    """The OpenVINO provider; its package excludes other onnxruntime packages, so it has its own environment."""

    kind: Literal["ort-openvino"] = "ort-openvino"
    env: str | None = "openvino"
    precision: Literal["f32", "bf16", "f16"] = Field("f32", description="of the part of a model that is in floats")
    int8_options: ClassVar[JsonObject] = OpenVino.int8_options
    provider: ClassVar[str] = "OpenVINOExecutionProvider"
    named: ClassVar[tuple[str, ...]] = ("precision",)

    def provider_options(self) -> dict[str, str]:
        """Return device and precision."""
        return {"device_type": "CPU", "load_config": json.dumps({"CPU": {"INFERENCE_PRECISION_HINT": self.precision}})}

    def engine_options(self) -> JsonObject:
        """Return also the option for the number of threads."""
        return super().engine_options() | {"threads_option": "num_of_threads"}
