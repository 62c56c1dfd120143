"""Preprocess a model for ONNX Runtime's quantizer, once for all recipes."""

import tempfile
from pathlib import Path

import numpy as np
import onnx
from onnx import helper
from onnxruntime.quantization.shape_inference import quant_pre_process

from gauntlet.calibration.quantizer_input import mend_graph, name_nodes
from gauntlet.onnx_model.fusions import fuse_patterns
from gauntlet.onnx_model.graph import required_inputs
from gauntlet.onnx_model.model_file import is_large_file, read_graph, read_model, write_model
from gauntlet.runtime.batched_inference import DTYPES
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
        _store_types_of_runtime(proto, Path(folder))
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


def _store_types_of_runtime(proto: onnx.ModelProto, folder: Path) -> None:
    """Store the types of tensors that ONNX does not infer, as behind operators of other domains: those ORT infers.

    The quantizer and its calibration leave tensors of unknown type as they are.
    """
    graph = proto.graph
    known = {value.name for value in (*graph.input, *graph.value_info, *graph.output) if value.HasField("type")}
    unknown = {name for node in graph.node for name in node.output if name} - known
    if not unknown:
        return
    extended = folder / "asked.onnx"
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in sorted(unknown))
    write_model(proto, extended)
    del graph.output[-len(unknown) :]
    for output in open_session(extended, level="off").get_outputs():
        if output.name in unknown and output.type in DTYPES and output.type != "tensor(string)":
            element_type = helper.np_dtype_to_tensor_dtype(np.dtype(DTYPES[output.type]))
            graph.value_info.append(helper.make_tensor_value_info(output.name, element_type, None))
