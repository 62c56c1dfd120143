"""The networks that the onnx wheel brings, at opset 9 and with random weights, can be quantized after normalization."""

import tempfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from brought_model import Brought, Workspaces, floats, outcomes
from calibration_feeds import Feeds
from onnx import helper, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic, quantize_static

from gauntlet.onnx_model.graph import required_inputs
from gauntlet.runtime.session import open_session

FOLDER = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
FILES = sorted(FOLDER.glob("*.onnx"))

NARROW = {4096: 64}
"""Size of a fully connected layer -> a smaller one: three of the networks have hundreds of megabytes there."""


def light_model(file: Path) -> onnx.ModelProto:
    """Return the network with a weight, which is an input as well, in place of each node that makes a constant one."""
    proto, rng = onnx.load(file), np.random.default_rng(0)
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}
    kept = []
    for node in proto.graph.node:
        if node.op_type != "ConstantOfShape":
            kept.append(node)
            continue
        shape, name = [NARROW.get(int(axis), int(axis)) for axis in stored[node.input[0]]], node.output[0]
        if len(shape) > 1:
            weight = rng.standard_normal(shape, np.float32) * np.float32(np.sqrt(2 / np.prod(shape[1:])))
        else:
            weight = np.abs(rng.standard_normal(shape, np.float32)) * np.float32(0.1) + np.float32(0.5)
        proto.graph.initializer.append(numpy_helper.from_array(weight, name))
        proto.graph.input.append(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape))
    del proto.graph.node[:]
    proto.graph.node.extend(kept)
    return proto


MARKS = {"squeezenet": (), "shufflenet": pytest.mark.slow}
"""Of those that every change has to pass; the others are nightly."""


@pytest.mark.parametrize(
    "file",
    [pytest.param(file, marks=MARKS.get(file.stem.removeprefix("light_"), pytest.mark.nightly)) for file in FILES],
    ids=lambda file: file.stem,
)
def test_published_network_of_opset_9_can_be_quantized_after_normalization(workspace: Workspaces, file: Path) -> None:
    proto = light_model(file)
    name = next(i.name for i in required_inputs(proto.graph))
    brought = Brought(workspace(), proto, {name: floats(2, 3, 224, 224)})
    report = brought.normalize()
    applied = {step for step, outcome in outcomes(report).items() if outcome == "applied"}
    assert {"initializer_inputs", "opset", "batch", "unused", "shapes"} <= applied
    assert report.facts.opset_after == 17
    path = brought.out.path(report.artifacts["normalized"])
    with tempfile.TemporaryDirectory(dir=brought.out.folder) as folder:
        static, dynamic = Path(folder) / "static.onnx", Path(folder) / "dynamic.onnx"
        quantize_static(path, static, Feeds([{name: floats(1, 3, 224, 224)}]), per_channel=True)
        quantize_dynamic(path, dynamic, weight_type=QuantType.QUInt8)
        for quantized in (static, dynamic):
            assert quantized.stat().st_size < 0.5 * path.stat().st_size
            assert open_session(quantized).run(None, {name: floats(2, 3, 224, 224)})[0].shape[0] == 2
