"""Shapes that static quantization needs and that neither the file nor ONNX's shape inference provides."""

import contextlib
import io
import logging
import tempfile
from pathlib import Path

import onnx

from gauntlet.onnx_model.graph import inferred_shapes, node_label, replace_model
from wings.inspection.library.diagnosis.context import ModelContext
from wings.inspection.library.diagnosis.findings import Finding

QUANTIZED = {"Conv", "ConvTranspose", "Gemm", "MatMul"}


def find(context: ModelContext) -> Finding | None:
    """Check for inputs and outputs of convolutions and matrix products whose shape is unknown."""
    known = inferred_shapes(context.proto)
    weights = {t.name for t in context.graph.initializer}
    around = [n for n in context.graph.node if n.op_type in QUANTIZED]
    needed = {name: n for n in around for name in (*n.input[:2], *n.output[:1]) if name and name not in weights}
    lacking = {name: node for name, node in needed.items() if name not in known}
    if not lacking:
        return None
    name, node = next(iter(lacking.items()))
    cause = f"{len(lacking)} of {len(needed)} tensors around convolutions and matrix products have no known shape, "
    cause += f"the first is '{name}' at {node_label(node)}: static quantization silently leaves them in float"
    fix = "prepare the model for quantization (quant_pre_process), or do so with --fix"
    return Finding(fault="missing_shapes", cause=cause, fix=fix, fixable=True, severity="warning")


def fix(proto: onnx.ModelProto) -> str:
    """Infer shapes symbolically and prepare the graph for quantization, in place; return what was done."""
    from onnxruntime.quantization.shape_inference import quant_pre_process

    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as silence:
        silence.enter_context(contextlib.redirect_stdout(io.StringIO()))
        silence.callback(logging.disable, logging.NOTSET)
        logging.disable(logging.CRITICAL)  # failures are handled below
        prepared = Path(folder) / "prepared.onnx"
        try:
            with contextlib.chdir(folder):  # on failure, it leaves files in the working folder
                quant_pre_process(proto, prepared, auto_merge=True)
        except Exception:  # symbolic inference fails on many valid models; ONNX's own infers what it can
            quant_pre_process(proto, prepared, skip_symbolic_shape=True)
        result = onnx.load(prepared)
    if not any(v.name for v in result.graph.value_info):
        result = onnx.shape_inference.infer_shapes(result, data_prop=True)
    replace_model(proto, result)
    return f"inferred shapes and prepared for quantization: {len(proto.graph.value_info)} shapes are stored"
