"""The model as ORT's quantiser wants it, made once for all recipes."""

import tempfile
from pathlib import Path

import onnx
from onnxruntime.quantization.calibrate import CalibraterBase
from onnxruntime.quantization.registry import QDQRegistry, QLinearOpsRegistry
from onnxruntime.quantization.shape_inference import quant_pre_process

from tasks.calibrate.joined import join
from tasks.model_file import is_large_file, read_model, write_model


def prepare(model: Path, target: Path) -> list[Path]:
    """Write the model with its shapes inferred, its batch norms folded, split operators joined, and each node named.

    Returns:
        The files beside `target` that hold its weights: none, or one.
    """
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        made = Path(folder) / "prepared.onnx"
        # Symbolic shape inference helps language models and fails on many others; ONNX's own is enough here.
        quant_pre_process(model, made, skip_symbolic_shape=True, save_as_external_data=is_large_file(model))
        proto = read_model(made)
    join(proto)
    taken: set[str] = set()
    for number, node in enumerate(proto.graph.node):
        if not node.name or node.name in taken:  # recipes name the nodes that they leave in float
            node.name = f"{node.op_type}_{number}"
        taken.add(node.name)
    return write_model(proto, target)


def activations(prepared: Path) -> dict[str, onnx.ValueInfoProto]:
    """Return the float tensors whose ranges `quantize_static` would look for, in the order of the graph."""
    chosen = CalibraterBase(prepared, [*{*QLinearOpsRegistry, *QDQRegistry}])
    names, infos = chosen.select_tensors_to_calibrate(chosen.model)
    graph = chosen.model.graph
    order = [*(i.name for i in graph.input), *(name for node in graph.node for name in node.output)]
    half = onnx.TensorProto.FLOAT16
    return {name: infos[name] for name in order if name in names and infos[name].type.tensor_type.elem_type != half}
