"""Preprocess a model for ONNX Runtime's quantizer, once for all recipes."""

import tempfile
from pathlib import Path

import onnx
from onnxruntime.quantization.shape_inference import quant_pre_process

from gauntlet.calibration.quantizer_input import mend_graph, name_nodes
from gauntlet.onnx_model.fusions import fuse_patterns
from gauntlet.onnx_model.graph import required_inputs
from gauntlet.onnx_model.model_file import is_large_file, read_graph, read_model, write_model
from gauntlet.runtime.session import open_session


def prepare_for_quantization(model: Path, target: Path) -> list[Path]:
    """Write the model with inferred shapes, folded batch norms, fused patterns and unique node names to `target`.

    Returns:
        Its external data files: none, or one.
    """
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        optimized = Path(folder) / "optimized.onnx"
        open_session(model, level="basic", save_to=optimized)  # the tool's own session lacks custom operators
        proto = read_model(optimized)
        _remove_former_weights(proto.graph, read_graph(model).graph)
        mend_graph(proto)
        proto = _with_shapes(proto, Path(folder), large=is_large_file(model))
    fuse_patterns(proto)
    name_nodes(proto.graph)
    return write_model(proto, target)


def _remove_former_weights(graph: onnx.GraphProto, original: onnx.GraphProto) -> None:
    """Remove inputs that were listed weights, and whose values ONNX Runtime has folded into others."""
    required = {value.name for value in required_inputs(original)}
    kept = [value for value in graph.input if value.name in required]
    del graph.input[:]
    graph.input.extend(kept)


def _with_shapes(proto: onnx.ModelProto, folder: Path, *, large: bool) -> onnx.ModelProto:
    """Return the model with all shapes that ONNX infers, without the stored ones where they contradict these."""
    mended, made = folder / "mended.onnx", folder / "prepared.onnx"
    # Symbolic shape inference helps language models and fails on many others; ONNX's own is enough here.
    settings = {"skip_optimization": True, "skip_symbolic_shape": True, "save_as_external_data": large}
    write_model(proto, mended)
    try:
        quant_pre_process(mended, made, **settings)
    except Exception:  # ONNX's inference errors share no public base
        del proto.graph.value_info[:]
        write_model(proto, mended)
        quant_pre_process(mended, made, **settings)
    return read_model(made)
