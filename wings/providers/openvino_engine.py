"""OpenVINO's own runtime."""

import io
import os
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov

from gauntlet.core.arrays import Array, NamedArrays
from gauntlet.core.errors import StageError
from gauntlet.runtime.engines.base import ONE_RELU, Engine, TensorInfo

HINT = "INFERENCE_PRECISION_HINT"
VERSION = ov.__version__.partition("-")[0]
MULTIPLY = {"Convolution", "GroupConvolution", "Deconvolution", "FullyConnected", "MatMul"}
NO_WORK = ("Parameter", "Constant", "Result")
ORT_TYPES = {"f32": "float", "f16": "float16", "f64": "double", "boolean": "bool", "string": "string"}
ORT_TYPES |= {f"{s}{n}": f"{kind}{n}" for s, kind in (("i", "int"), ("u", "uint")) for n in (8, 16, 32, 64)}


def unavailable_reason(options: dict[str, Any]) -> str | None:
    """Return why the device or its precision is unavailable: a device may silently compute in another precision."""
    core, device = ov.Core(), options["device"]
    if device not in core.available_devices:
        return f"OpenVINO {VERSION} finds no {device}, only {', '.join(core.available_devices) or 'nothing'}"
    properties = options.get("properties", {})
    compiled = core.compile_model(core.read_model(io.BytesIO(ONE_RELU)), device, properties)
    if HINT in properties and (actual := compiled.get_property(HINT).get_type_name()) != properties[HINT]:
        name = core.get_property(device, "FULL_DEVICE_NAME").strip()
        return f"OpenVINO {VERSION} computes in {actual} instead of {properties[HINT]} on the {name}"
    return None


def check_operators(model: Path, options: dict[str, Any]) -> dict[str, Any]:
    """Return which nodes of the converted graph the device does not take; see `gauntlet.runtime.worker`."""
    core, device, runtime = ov.Core(), options["device"], f"openvino {VERSION}"
    try:
        graph = core.read_model(str(model))
        taken = core.query_model(graph, device)
    except RuntimeError as error:
        return {"runtime": runtime, "nodes": None, "elsewhere": {}, "refused": str(error)}
    nodes = [node for node in graph.get_ordered_ops() if node.get_type_name() not in NO_WORK]
    missing = Counter(node.get_type_name() for node in nodes if node.get_friendly_name() not in taken)
    refused = f"{device} does not take {', '.join(missing)}" if missing else None
    return {"runtime": runtime, "nodes": len(nodes), "elsewhere": {}, "refused": refused}


class OpenVinoEngine(Engine):
    """A compiled model and one inference request."""

    def __init__(self, model: Path, threads: int, options: dict[str, Any]) -> None:
        self.runtime = f"openvino {VERSION}"
        self.device = options["device"]
        self.on_processor = self.device == "CPU"
        if os.environ.get("GAUNTLET_OPERATOR_LIBRARIES"):
            raise StageError("OpenVINO cannot load operator_libraries, which are for ONNX Runtime")
        properties = {"PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": 1} | options.get("properties", {})
        if self.device == "CPU":
            properties["INFERENCE_NUM_THREADS"] = threads
        try:
            self.compiled = ov.Core().compile_model(str(model), self.device, properties)
        except RuntimeError as error:
            raise StageError(f"OpenVINO {VERSION} refuses the model: {error}") from error
        self.request, self.lock = self.compiled.create_infer_request(), threading.Lock()
        self.inputs, self.outputs = ([*map(_port, ports)] for ports in (self.compiled.inputs, self.compiled.outputs))

    def bind(self, feed: NamedArrays) -> tuple[Callable[[], Any], Callable[[Any], list[Array]]]:
        """Share the inputs' memory with the request, and copy the outputs from its tensors."""
        native = ((array, array.dtype.newbyteorder("=")) for array in feed.values())
        shared = [np.require(array, dtype, ("C", "W")) for array, dtype in native]  # OpenVINO takes no other memory
        for name, array in zip(feed, shared, strict=True):
            self.request.set_tensor(name, ov.Tensor(array, shared_memory=True))

        def infer(_: Sequence[Array] = shared) -> None:
            self.request.infer()  # the default keeps the arrays, which the request does not

        outputs = range(len(self.compiled.outputs))
        return infer, lambda _: [np.array(self.request.get_output_tensor(i).data) for i in outputs]

    def run(self, names: Sequence[str], feed: NamedArrays) -> list[Array]:
        """Return the named outputs of one call; threads wait for each other."""
        with self.lock:
            return super().run(names, feed)

    def placement(self, feed: NamedArrays) -> dict[str, Any]:
        """Return the nodes of the compiled graph, and the types of its multiplying kernels."""
        infos = [node.get_rt_info() for node in self.compiled.get_runtime_model().get_ordered_ops()]
        kernels = Counter(_text(i, "runtimePrecision") for i in infos if _text(i, "layerType") in MULTIPLY)
        nodes = [[_text(info, "originalLayersNames"), _text(info, "layerType")] for info in infos]
        return {"asked": self.device, "nodes": {self.device: nodes}, "kernels": dict(kernels)}


load_engine = OpenVinoEngine


def _text(info: Any, name: str) -> str:
    return str(info[name].astype(str)) if name in info else ""


def _port(value: Any) -> TensorInfo:
    shape = [axis.get_length() if axis.is_static else "?" for axis in value.partial_shape]
    kind = value.element_type.get_type_name()
    return TensorInfo(value.any_name, f"tensor({ORT_TYPES.get(kind, kind)})", shape)
