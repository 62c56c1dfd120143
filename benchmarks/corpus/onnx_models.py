"""Models as ONNX text with random weights, and ways in which other tools would have stored the same model."""

import zlib
from collections.abc import Iterator

import numpy as np
import onnx
from onnx import helper, numpy_helper, parser


def written(text: str, opset: int = 18, **domains: int) -> onnx.ModelProto:
    """Parse a model; initializers that the text declares without values get random ones, the same at every call."""
    versions = ", ".join(f'"{name}": {version}' for name, version in {"": opset, **domains}.items())
    proto = parser.parse_model(f"<ir_version: {8 if opset > 8 else 4}, opset_import: [{versions}]> {text}")
    computed = {name for node in proto.graph.node for name in node.output}
    for value in [value for value in proto.graph.value_info if value.name not in computed]:
        shape = tuple(axis.dim_value for axis in value.type.tensor_type.shape.dim)
        dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        proto.graph.initializer.append(numpy_helper.from_array(random_weights(value.name, shape, dtype), value.name))
        proto.graph.value_info.remove(value)
    return proto


def random_weights(
    name: str, shape: tuple[int, ...], dtype: "np.dtype[np.generic]"
) -> "np.ndarray[tuple[int, ...], np.dtype[np.generic]]":
    """Return normally distributed weights, scaled so that activations keep their size; seeded by name and shape."""
    rng = np.random.default_rng(zlib.crc32(f"{name}{shape}".encode()))
    if len(shape) < 2:  # a bias, or what a normalization multiplies by
        return (1 + 0.1 * rng.standard_normal(shape)).astype(dtype)
    fan_in = np.prod(shape[1:]) if len(shape) > 2 else shape[0]
    return (rng.standard_normal(shape) * np.sqrt(2 / fan_in)).astype(dtype)


def with_weights_as_constants(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Store every weight in a Constant node, as some exporters do."""
    nodes = [helper.make_node("Constant", [], [tensor.name], value=tensor) for tensor in proto.graph.initializer]
    nodes += proto.graph.node
    del proto.graph.node[:], proto.graph.initializer[:]
    proto.graph.node.extend(nodes)
    return proto


def with_weights_as_inputs(proto: onnx.ModelProto) -> onnx.ModelProto:
    """List every weight among the inputs, as files before IR version 4 had to."""
    proto.ir_version = min(proto.ir_version, 4)
    proto.graph.input.extend(
        helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims) for tensor in proto.graph.initializer
    )
    return proto


def with_number_names(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Name every tensor but inputs and outputs by a number, and some like what a quantizer would add to another."""
    kept = {value.name for value in (*proto.graph.input, *proto.graph.output)}
    names = [n for n in dict.fromkeys(_tensor_names(proto.graph)) if n and n not in kept]
    endings = ("", "_scale", "_zero_point", "_quantized", "_QuantizeLinear_Output", "_DequantizeLinear_Output")
    new = {name: f"{100 + place // len(endings)}{endings[place % len(endings)]}" for place, name in enumerate(names)}
    for node in proto.graph.node:
        node.input[:] = [new.get(name, name) for name in node.input]
        node.output[:] = [new.get(name, name) for name in node.output]
    for tensor in proto.graph.initializer:
        tensor.name = new.get(tensor.name, tensor.name)
    del proto.graph.value_info[:]
    return proto


def in_float16(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Convert the model, its inputs and its outputs to half precision."""
    from onnxruntime.transformers.float16 import convert_float_to_float16

    return convert_float_to_float16(proto)


def _tensor_names(graph: onnx.GraphProto) -> Iterator[str]:
    yield from (tensor.name for tensor in graph.initializer)
    for node in graph.node:
        yield from node.output


def quantized(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Quantize the model with ONNX Runtime's own tool, as somebody may have done before."""
    import tempfile
    from pathlib import Path

    from onnxruntime.quantization import QuantType, quantize_dynamic

    with tempfile.TemporaryDirectory() as folder:
        before, after = Path(folder) / "before.onnx", Path(folder) / "after.onnx"
        onnx.save(proto, before)
        quantize_dynamic(before, after, weight_type=QuantType.QUInt8)
        return onnx.load(after)
