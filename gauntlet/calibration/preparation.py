"""The model as ORT's quantiser wants it, made once for all recipes."""

import tempfile
from pathlib import Path

from onnxruntime.quantization.shape_inference import quant_pre_process

from gauntlet.onnx_model.fusions import fuse_patterns
from gauntlet.onnx_model.model_file import is_large_file, read_model, write_model
from gauntlet.runtime.session import open_session


def prepare_for_quantization(model: Path, target: Path) -> list[Path]:
    """Write the model with its shapes inferred, its batch norms folded, split operators joined, and each node named.

    Returns:
        The files beside `target` that hold its weights: none, or one.
    """
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        optimised, made = Path(folder) / "optimised.onnx", Path(folder) / "prepared.onnx"
        open_session(model, level="basic", save_to=optimised)  # the tool's own session has no libraries of operators
        # Symbolic shape inference helps language models and fails on many others; ONNX's own is enough here.
        large = is_large_file(model)
        quant_pre_process(
            optimised, made, skip_optimization=True, skip_symbolic_shape=True, save_as_external_data=large
        )
        proto = read_model(made)
    fuse_patterns(proto)
    taken: set[str] = set()
    for number, node in enumerate(proto.graph.node):
        if not node.name or node.name in taken:  # recipes name the nodes that they leave in float
            node.name = f"{node.op_type}_{number}"
        taken.add(node.name)
    return write_model(proto, target)
