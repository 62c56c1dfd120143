"""The networks that the onnx wheel brings can be quantized after normalization."""

import tempfile
from pathlib import Path

import light_models
import pytest
from brought_model import Brought, Workspaces, floats, outcomes
from calibration_feeds import Feeds
from onnxruntime.quantization import QuantType, quantize_dynamic, quantize_static

from gauntlet.onnx_model.graph import required_inputs
from gauntlet.runtime.session import open_session

MARKS = {"squeezenet": (), "resnet50": pytest.mark.slow, "shufflenet": pytest.mark.slow}
"""Of those that every change has to pass; the others are nightly."""


@pytest.mark.parametrize(
    "file",
    [
        pytest.param(file, marks=MARKS.get(file.stem.removeprefix("light_"), pytest.mark.nightly))
        for file in light_models.FILES
    ],
    ids=lambda file: file.stem,
)
def test_published_network_of_opset_9_can_be_quantized_after_normalization(workspace: Workspaces, file: Path) -> None:
    proto = light_models.light_model(file)
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
