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
from flows.record.home import Home
from gauntlet.core.run_report import RunReport
from gauntlet.onnx_model.graph import required_inputs

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
def test_fixed_input_folds_its_branch_so_that_recipes_reach_into_it(run: Run, home: Home, tmp_path: Path) -> None:
    proto = onnx_text.model("""
        rates (float[1,32] x, int64 sr) => (float[1,10] y)
        <int64 high = {16000}, float[32,10] w>
        {
            is_high = Equal(sr, high)
            y = If(is_high) <
                then_branch = a () => (float[1,10] t) { p = MatMul(x, w) t = Tanh(p) },
                else_branch = c () => (float[1,10] e) { q = MatMul(x, w) e = Neg(q) }
            >
        }
    """)
    samples = {"x": floats(1, 32), "sr": np.full(COUNT, 16000)}
    report = run(brought(tmp_path, proto, samples, "normalize.fix_inputs={sr: 16000}"))
    assert report.verdict == "passed", report.reason
    made = {c.name: c for c in report.candidates}
    assert "normalized" in made  # the runtime makes another graph of it
    for name in ("normalized", "dynamic-u8"):
        artifact = made[name].artifact
        assert artifact is not None, made[name].reason
        graph = onnx.load(home.store.path(artifact)).graph
        assert [value.name for value in required_inputs(graph)] == ["x"]
    kinds = {node.op_type for node in onnx.load(home.store.path(made["dynamic-u8"].artifact)).graph.node}
    assert "MatMulInteger" in kinds
    assert made["normalized"].benchmark  # raced against the file as it came, which takes both inputs


def test_input_that_the_samples_vary_fails_the_run(run: Run, tmp_path: Path) -> None:
    proto = onnx_text.model("""
        scaled (float[1,32] x, float gain) => (float[1,32] y) { y = Mul(x, gain) }
    """)
    samples = {"x": floats(1, 32), "gain": np.linspace(1, 2, COUNT, dtype=np.float32)}
    report = run(brought(tmp_path, proto, samples, "normalize.fix_inputs={gain: 1.0}", "quantize=[]"))
    assert (report.verdict, report.stopped_at) == ("failed", "normalize")
    assert "samples have another value than 1.0 for 'gain'" in report.reason


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
