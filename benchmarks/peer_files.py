"""Files that race beside the product's choice, and what an expert makes by hand."""

import tempfile
from pathlib import Path

import numpy as np
import onnx
from calibration_feeds import one_by_one
from onnx import NodeProto, numpy_helper, version_converter
from onnxruntime.quantization import QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process

from gauntlet.core.arrays import NamedArrays
from gauntlet.core.frozen import Frozen
from gauntlet.race.contender import Entry
from gauntlet.runtime.resources import usable_threads
from gauntlet.runtime.worker_client import WorkerClient
from gauntlet.targets import Target
from gauntlet.targets.environments import RuntimeEnvironment

NNCF = RuntimeEnvironment(python=("nncf==3.4.0", "onnx==1.22.0", "onnxruntime==1.32.0", "openvino==2026.4.1"))
TIMEOUT_S = 300


class Row(Frozen):
    """A file on a target."""

    file: Path
    target: Target

    def entry(self) -> Entry:
        """Return it as the race takes it."""
        return Entry.on_target(self.file, self.target)


def outputs(entry: Entry, inputs: Path, batch: int = 8) -> NamedArrays:
    """Return all outputs for all inputs, shape (n, ...) each."""
    with WorkerClient(entry.command) as worker, tempfile.TemporaryDirectory() as place:
        worker.load(entry.model, inputs, usable_threads(), TIMEOUT_S, entry.options)
        path = Path(place) / "outputs.npz"
        names = worker.request({"do": "write_outputs", "batch": batch, "path": str(path)}, TIMEOUT_S)["outputs"]
        with np.load(path) as file:
            return {name: np.asarray(file[name]) for name in names}


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
