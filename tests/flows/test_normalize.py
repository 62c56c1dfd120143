"""Brought models that stopped at the door: each goes through the whole pipeline, and its candidates are made."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_text
import pytest
from harness import SHORT, WITHOUT_REPAIR
from onnx import TensorProto, helper, numpy_helper

from configs.loader import load
from configs.schema import PipelineConfig
from gauntlet.core.run_report import RunReport

Run = Callable[[PipelineConfig], RunReport]
QUICK = (*SHORT, "optimize=[]", "quantize=[{kind: static}, {kind: dynamic}]", *WITHOUT_REPAIR)
COUNT = 24


def brought(folder: Path, proto: onnx.ModelProto, samples: dict[str, np.ndarray], *settings: str) -> PipelineConfig:
    onnx.save(proto, folder / "brought.onnx")
    np.savez(folder / "samples.npz", **samples)
    data = (f"train.model={folder / 'brought.onnx'}", f"data.path={folder / 'samples.npz'}")
    return load("bring-your-own-onnx", (*QUICK, *data, *settings))


def floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(11).standard_normal((COUNT, *shape)).astype(np.float32)


def opset_11() -> onnx.ModelProto:
    """The first weight is a Constant node, the second an input; the batch is 1."""
    proto = onnx_text.model(
        """
        old (float[1,32] x) => (float[1,10] y) <float[64,10] v>
        {
            w = Constant<value_float = 1.0>()
            h = MatMul(x, w)
            r = Relu(h)
            y = MatMul(r, v)
        }
        """,
        opset=12,
        ir_version=3,
    )
    weight = numpy_helper.from_array(np.random.default_rng(1).standard_normal((32, 64)).astype(np.float32) / 6)
    proto.graph.node[0].attribute[0].CopyFrom(helper.make_attribute("value", weight))
    proto.graph.input.append(helper.make_tensor_value_info("v", TensorProto.FLOAT, [64, 10]))
    return proto


@pytest.mark.slow
def test_old_model_reaches_the_race_with_every_recipe(run: Run, tmp_path: Path) -> None:
    report = run(brought(tmp_path, opset_11(), {"x": floats(32)}))
    assert report.verdict == "passed", report.reason
    stages = [entry.stage for entry in report.stages if entry.candidate is None]
    assert stages[1:5] == ["train", "export", "normalize", "structure"]
    normalized = report.stage("normalize")
    assert (normalized.facts["opset_before"], normalized.facts["opset_after"]) == (12, 17)
    made = {c.name: c for c in report.candidates}
    assert set(made) >= {"fp32", "static-u8s8", "dynamic-u8"}
    for name in ("static-u8s8", "dynamic-u8"):
        assert report.stage("accuracy", name) is not None, made[name].reason
    reference = made["fp32"].artifact
    assert reference is not None
    assert reference != normalized.artifacts["normalized"]  # the file as it came is what is raced against


@pytest.mark.slow
def test_recipes_are_dropped_with_a_reason_when_the_model_is_quantized_already(run: Run, tmp_path: Path) -> None:
    proto = onnx_text.model(
        """
        quantized (float[n,32] x) => (float[n,10] y)
        <float s = {0.05}, uint8 z = {128}, int8[32,10] w, float ws = {0.01}, int8 wz = {0}>
        {
            q = QuantizeLinear(x, s, z)
            d = DequantizeLinear(q, s, z)
            v = DequantizeLinear(w, ws, wz)
            y = MatMul(d, v)
        }
        """,
        {"w": np.random.default_rng(2).integers(-100, 100, (32, 10))},
        opset=13,
    )
    report = run(brought(tmp_path, proto, {"x": floats(32)}))
    assert (report.verdict, report.winner) == ("passed", "fp32"), report.reason
    reasons = {c.name: c.reason for c in report.candidates if c.name != "fp32"}
    for name in ("static-u8s8", "dynamic-u8"):
        assert "this one is not: it has 2 DequantizeLinear, 1 QuantizeLinear nodes" in reasons[name]
