"""Preprocess a model for ONNX Runtime's quantizer, once for all recipes."""

import math
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper
from onnxruntime.quantization.shape_inference import quant_pre_process

from gauntlet.calibration.quantizer_input import mend_graph, name_nodes
from gauntlet.onnx_model.graph import all_nodes, attributes_of, int_values, opset_versions, required_inputs
from gauntlet.onnx_model.model_file import bodies, is_large_file, read_graph, read_model, write_model
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
    if opset_versions(proto).get("ai.onnx", 0) >= HARD_SWISH_OPSET:
        _fuse_hard_swish(proto.graph)
    _fuse_global_average_pool(proto.graph)
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


HARD_SWISH_OPSET = 14
"""The first opset with HardSwish."""
REAL = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE)


def _fuse_hard_swish(graph: onnx.GraphProto) -> None:
    """Fuse HardSwish, which ONNX Runtime decomposes when it folds constants.

    Its sessions decompose it again, but in OpenVINO a MobileNetV3 in INT8 takes 1.5 times as long with the parts.
    """
    readers = _readers(graph)
    for gate in [node for node in graph.node if node.op_type == "HardSigmoid"]:
        values, [x], [y] = attributes_of(gate), gate.input, gate.output
        reading = readers.get(y, [])
        is_hard_swish = math.isclose(values.get("alpha", 0.2), 1 / 6, rel_tol=1e-6) and values.get("beta", 0.5) == 0.5
        if not is_hard_swish or len(reading) != 1 or reading[0] is None:
            continue
        if reading[0].op_type == "Mul" and sorted(reading[0].input) == sorted([x, y]):
            reading[0].op_type = "HardSwish"
            reading[0].input[:] = [x]
            graph.node.remove(gate)


def _fuse_global_average_pool(graph: onnx.GraphProto) -> None:
    """Replace the mean of each channel by GlobalAveragePool.

    Keras exports a ReduceMean that drops its axes and a Reshape that restores them. Quantizers do not quantize before a
    Reshape, so an EfficientNetB0 in INT8 was a fifth slower in OpenVINO and a seventh slower in ONNX Runtime.
    """
    constants = {tensor.name: tensor for tensor in graph.initializer}
    tensors = {info.name: info.type.tensor_type for info in [*graph.input, *graph.value_info]}
    readers = _readers(graph)
    for mean in [node for node in graph.node if node.op_type == "ReduceMean"]:
        attributes = attributes_of(mean)
        axes = attributes.get("axes", ()) if len(mean.input) < 2 else int_values(constants.get(mean.input[1]))
        x = tensors.get(mean.input[0], onnx.TypeProto.Tensor())
        rank = len(x.shape.dim) if x.elem_type in REAL else 0
        if rank < 3 or sorted(axis % rank for axis in axes) != [*range(2, rank)]:
            continue
        if not attributes.get("keepdims", 1):
            reading = readers.get(mean.output[0], [])
            if len(reading) != 1 or reading[0] is None or not _restores(reading[0], x.shape, constants):
                continue
            mean.output[:] = reading[0].output
            graph.node.remove(reading[0])
        mean.op_type = "GlobalAveragePool"
        del mean.attribute[:], mean.input[1:]


def _restores(node: onnx.NodeProto, shape: onnx.TensorShapeProto, constants: Mapping[str, onnx.TensorProto]) -> bool:
    """Return whether a node is a Reshape that restores the dropped axes, all but the first two, with length 1."""
    if node.op_type != "Reshape" or any(attribute.i for attribute in node.attribute):  # allowzero
        return False
    target = int_values(constants.get(node.input[1]))
    return len(target) == len(shape.dim) and all(
        length == 1 if axis > 1 else length in (-1, 0) or length == shape.dim[axis].dim_value
        for axis, length in enumerate(target)
    )


def _readers(graph: onnx.GraphProto) -> dict[str, list[onnx.NodeProto | None]]:
    """Return the nodes that read each tensor; None stands for the caller of the model, and for nodes in a body."""
    readers: dict[str, list[onnx.NodeProto | None]] = {output.name: [None] for output in graph.output}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
        for name in (name for body in bodies(node) for inner in all_nodes(body) for name in inner.input):
            readers.setdefault(name, []).append(None)
    return readers
