"""Shapes that static quantisation needs and that neither the file nor ONNX's shape inference knows."""

import contextlib
import io
import logging
import tempfile
from pathlib import Path

import onnx

from tasks.diagnose.clues import Clues
from tasks.diagnose.finding import Finding
from tasks.runtime.graph import known_axes, label

QUANTISED = {"Conv", "ConvTranspose", "Gemm", "MatMul"}


def find(clues: Clues) -> Finding | None:
    """Look for activations around convolutions and matrix products whose shape is unknown."""
    known = known_axes(clues.proto)
    weights = {t.name for t in clues.graph.initializer}
    around = [n for n in clues.graph.node if n.op_type in QUANTISED]
    needed = {name: n for n in around for name in (*n.input[:2], *n.output[:1]) if name and name not in weights}
    lacking = {name: node for name, node in needed.items() if name not in known}
    if not lacking:
        return None
    name, node = next(iter(lacking.items()))
    return Finding(
        fault="missing_shapes",
        cause=f"{len(lacking)} of {len(needed)} tensors around convolutions and matrix products have no known shape, "
        f"the first is '{name}' at {label(node)}: static quantisation leaves them in float without a word",
        fix="prepare the model for quantisation (quant_pre_process), or let --fix do it",
        fixable=True,
        severity="warning",
    )


def fix(proto: onnx.ModelProto) -> str:
    """Infer shapes symbolically and prepare the graph for quantisation, in place; return what was done."""
    from onnxruntime.quantization.shape_inference import quant_pre_process

    kept = list(proto.metadata_props)
    with tempfile.TemporaryDirectory() as folder, _silence():
        prepared = Path(folder) / "prepared.onnx"
        try:
            with contextlib.chdir(folder):  # where it fails, it leaves what it had in the working folder
                quant_pre_process(proto, prepared, auto_merge=True)
        except Exception:  # the symbolic inference gives up on many sound models; ONNX's own goes as far as it can
            quant_pre_process(proto, prepared, skip_symbolic_shape=True)
        result = onnx.load(prepared)
    if not any(v.name for v in result.graph.value_info):
        result = onnx.shape_inference.infer_shapes(result, data_prop=True)
    del result.metadata_props[:]
    result.metadata_props.extend(kept)
    result.ir_version = min(result.ir_version, proto.ir_version)
    proto.CopyFrom(result)
    return f"inferred shapes and prepared for quantisation: {len(proto.graph.value_info)} shapes are stored now"


@contextlib.contextmanager
def _silence():  # type: ignore[no-untyped-def]
    """Keep what the preparation logs and prints to itself: its failure is handled above."""
    logging.disable(logging.CRITICAL)
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)
