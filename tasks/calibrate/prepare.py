"""The model as ORT's quantiser wants it, made once for all recipes."""

import math
import tempfile
from pathlib import Path

import onnx
from onnxruntime.quantization.calibrate import CalibraterBase
from onnxruntime.quantization.registry import QDQRegistry, QLinearOpsRegistry
from onnxruntime.quantization.shape_inference import quant_pre_process

from tasks.model_file import is_large_file, read_model, write_model

HARD_SWISH_OPSET = 14
"""The operator set from which on there is a HardSwish."""


def prepare(model: Path, target: Path) -> list[Path]:
    """Write the model with its shapes inferred, its batch norms folded, and a name of its own for every node.

    Returns:
        The files beside `target` that hold its weights: none, or one.
    """
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        made = Path(folder) / "prepared.onnx"
        # Symbolic shape inference helps language models and fails on many others; ONNX's own is enough here.
        quant_pre_process(model, made, skip_symbolic_shape=True, save_as_external_data=is_large_file(model))
        proto = read_model(made)
    if any(opset.domain in ("", "ai.onnx") and opset.version >= HARD_SWISH_OPSET for opset in proto.opset_import):
        _fuse_hard_swish(proto.graph)
    taken: set[str] = set()
    for number, node in enumerate(proto.graph.node):
        if not node.name or node.name in taken:  # recipes name the nodes that they leave in float
            node.name = f"{node.op_type}_{number}"
        taken.add(node.name)
    return write_model(proto, target)


def _fuse_hard_swish(graph: onnx.GraphProto) -> None:
    """Put HardSwish together again, which ONNX Runtime takes apart when it folds constants.

    It does so in every session, so nothing changes there. OpenVINO has a kernel for the whole and none for the parts:
    a MobileNetV3 in INT8 is 1.5 times as slow there with them.
    """
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    kept_names = {output.name for output in graph.output}
    for gate in [node for node in graph.node if node.op_type == "HardSigmoid"]:
        shape = {attribute.name: attribute.f for attribute in gate.attribute}
        slope, offset = shape.get("alpha", 0.2), shape.get("beta", 0.5)
        [x], [y] = gate.input, gate.output
        reading = readers.get(y, [])
        if y in kept_names or len(reading) != 1 or not (math.isclose(slope, 1 / 6, rel_tol=1e-6) and offset == 0.5):
            continue
        if reading[0].op_type == "Mul" and sorted(reading[0].input) == sorted([x, y]):
            reading[0].op_type = "HardSwish"
            reading[0].input[:] = [x]
            graph.node.remove(gate)


def activations(prepared: Path) -> dict[str, onnx.ValueInfoProto]:
    """Return the float tensors whose ranges `quantize_static` would look for, in the order of the graph."""
    chosen = CalibraterBase(prepared, [*{*QLinearOpsRegistry, *QDQRegistry}])
    names, infos = chosen.select_tensors_to_calibrate(chosen.model)
    graph = chosen.model.graph
    order = [*(i.name for i in graph.input), *(name for node in graph.node for name in node.output)]
    half = onnx.TensorProto.FLOAT16
    return {name: infos[name] for name in order if name in names and infos[name].type.tensor_type.elem_type != half}
