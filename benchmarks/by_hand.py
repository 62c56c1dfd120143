"""What an expert makes of an ONNX file by hand, with ONNX Runtime's own tools."""

from pathlib import Path

import onnx
from calibration_feeds import one_by_one
from onnx import NodeProto, numpy_helper, version_converter
from onnxruntime.quantization import QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process

from gauntlet.core.arrays import NamedArrays

OPSET = 17
RECIPES = {"8 bit": False, "7 bit": True}
"""Name of a file -> `reduce_range` of `quantize_static`."""


def quantized_by_hand(model: Path, samples: NamedArrays, folder: Path) -> dict[str, Path]:
    """Return the INT8 files of a model: raised to opset 17, its constants lifted, quantized per channel.

    `samples` are for calibration, of the model's one input; the files are written to `folder`.
    """
    raised, prepared = folder / "raised.onnx", folder / "prepared.onnx"
    onnx.save(with_initializers(at_opset(with_initializers(onnx.load(model)))), raised)
    quant_pre_process(raised, prepared, skip_symbolic_shape=True)  # it fails for some graphs
    files = {}
    for name, reduce_range in RECIPES.items():
        files[name] = folder / f"{name.replace(' ', '-')}.onnx"
        types = {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QInt8, "reduce_range": reduce_range}
        quantize_static(prepared, files[name], one_by_one(samples), per_channel=True, **types)
    return files


def at_opset(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model at opset 17 at least."""
    version = next(imported.version for imported in proto.opset_import if imported.domain in ("", "ai.onnx"))
    return proto if version >= OPSET else version_converter.convert_version(proto, OPSET)


def with_initializers(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Make initializers of Constant nodes, and take initializers out of the inputs."""
    nodes: list[NodeProto] = []
    for node in proto.graph.node:
        value = next((a.t for a in node.attribute if a.name == "value"), None) if node.op_type == "Constant" else None
        if value is None:
            nodes.append(node)
        else:
            proto.graph.initializer.append(numpy_helper.from_array(numpy_helper.to_array(value), node.output[0]))
    stored = {tensor.name for tensor in proto.graph.initializer}
    inputs = [value for value in proto.graph.input if value.name not in stored]
    del proto.graph.node[:], proto.graph.input[:]
    proto.graph.node.extend(nodes)
    proto.graph.input.extend(inputs)
    proto.ir_version = max(proto.ir_version, 8)
    return proto
