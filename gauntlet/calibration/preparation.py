"""Preprocess a model for ONNX Runtime's quantizer, once for all recipes."""

import tempfile
from pathlib import Path

from onnxruntime.quantization.shape_inference import quant_pre_process

from gauntlet.onnx_model.fusions import fuse_patterns
from gauntlet.onnx_model.model_file import is_large_file, read_model, write_model
from gauntlet.runtime.session import open_session


def prepare_for_quantization(model: Path, target: Path) -> list[Path]:
    """Write the model with inferred shapes, folded batch norms, fused patterns and unique node names to `target`.

    Returns:
        Its external data files: none, or one.
    """
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        optimized, made = Path(folder) / "optimized.onnx", Path(folder) / "prepared.onnx"
        open_session(model, level="basic", save_to=optimized)  # the tool's own session lacks custom operators
        # Symbolic shape inference helps language models and fails on many others; ONNX's own is enough here.
        settings = {"skip_optimization": True, "skip_symbolic_shape": True}
        quant_pre_process(optimized, made, **settings, save_as_external_data=is_large_file(model))
        proto = read_model(made)
    fuse_patterns(proto)
    taken: set[str] = set()
    for number, node in enumerate(proto.graph.node):
        if not node.name or node.name in taken:  # recipes refer to nodes by name
            node.name = f"{node.op_type}_{number}"
        taken.add(node.name)
    return write_model(proto, target)
