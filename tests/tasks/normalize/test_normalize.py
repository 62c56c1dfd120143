"""A brought model is put into its form, step by step, and no step that changes the outputs is kept."""

from pathlib import Path

import numpy as np
import onnx
import onnx_text
import pytest
from brought_model import Brought, Workspaces, floats, outcomes
from normalized_models import sample_rates
from onnx import TensorProto, helper, numpy_helper

from gauntlet.core.signature import Signature, signature_from_graph
from gauntlet.datasets.golden import Golden, GoldenCase
from gauntlet.onnx_model.graph import required_inputs
from gauntlet.onnx_model.model_file import model_files
from gauntlet.runtime.session import open_session
from tasks.normalize import normalize
from tasks.normalize.config import NormalizeConfig
from tasks.normalize.steps import STEPS, Setting
from tasks.structure import StructureConfig, structure


def opset_12() -> onnx.ModelProto:
    """A weight as a Constant node, one as an input, a fixed batch, an old opset, and a node that nothing reads."""
    proto = onnx_text.model(
        """
        old (float[1,16] x) => (float[1,4] y) <float[4] b, float[8,4] v> {
            w = Constant<value = float[2] {1.0, 2.0}>() h = MatMul(x, w) r = Relu(h) unused = Neg(r)
            q = MatMul(r, v) s = Add(q, b) y = Softmax<axis = 1>(s)
        }
        """,
        opset=12,
        ir_version=7,
    )
    proto.graph.node[0].attribute[0].t.CopyFrom(numpy_helper.from_array(floats(16, 8), "w"))
    proto.graph.input.append(helper.make_tensor_value_info("v", TensorProto.FLOAT, [8, 4]))
    return proto


def test_every_step_that_applies_is_applied_and_the_outputs_stay(workspace: Workspaces) -> None:
    brought = Brought(workspace(), opset_12(), {"x": floats(10, 16)})
    report = brought.normalize()
    assert outcomes(report) == dict.fromkeys(
        ("constants", "initializer_inputs", "opset", "batch", "unused", "names", "shapes"), "applied"
    )
    facts, proto = report.facts, brought.result(report)
    assert (facts.changed, facts.opset_before, facts.opset_after, facts.precision) == (True, 12, 17, "float32")
    assert all(step.max_abs_error is not None for step in facts.steps if step.outcome == "applied")
    assert [i.name for i in proto.graph.input] == ["x"]
    signature = Signature.read(proto)
    assert (signature.inputs[0].shape, signature.outputs[0].shape) == (("batch", 16), ("batch", 4))
    session = open_session(brought.out.path(report.artifacts["normalized"]))
    expected = Golden.load(brought.out.path(brought.golden)).test_outputs["y"]
    np.testing.assert_allclose(session.run(None, brought.samples)[0], expected, atol=1e-6)  # ten samples in one call
    gate = structure(StructureConfig(), brought.out, model=report.artifacts["normalized"])
    assert not gate.failures


def test_model_in_its_form_is_passed_on_as_it_is(workspace: Workspaces) -> None:
    proto = onnx_text.model(
        "fine (float[n,16] x) => (float[n,4] y) <float[16,4] w> { [product] y = MatMul(x, w) }", opset=18
    )
    brought = Brought(workspace(), proto, {"x": floats(10, 16)})
    report = brought.normalize()
    assert report.artifacts["normalized"] == brought.model
    assert (report.facts.changed, report.facts.same_graph, outcomes(report)) == (False, True, {})
    assert not list(brought.out.folder.iterdir())  # nothing was written, so nothing was compared


@pytest.mark.parametrize("ir_version", [3, 8])
def test_weights_that_are_inputs_become_constants_and_count_as_another_graph(
    workspace: Workspaces, ir_version: int
) -> None:
    text = "m (float[n,16] x, float[16,4] w) => (float[n,4] y) <float[16,4] w> { [product] y = MatMul(x, w) }"
    brought = Brought(workspace(), onnx_text.model(text, ir_version=ir_version), {"x": floats(10, 16)})
    report = brought.normalize()
    assert outcomes(report)["initializer_inputs"] == "applied"
    assert [value.name for value in brought.result(report).graph.input] == ["x"]
    assert not report.facts.same_graph


def test_newest_opset_in_use_limits_the_opset(workspace: Workspaces) -> None:
    brought = Brought(workspace(), opset_12(), {"x": floats(10, 16)})
    report = normalize(NormalizeConfig(), brought.out, model=brought.model, golden=brought.golden, max_opset=15)
    assert report.facts.opset_after == 15


def test_step_that_is_skipped_is_left_out(workspace: Workspaces) -> None:
    brought = Brought(workspace(), opset_12(), {"x": floats(10, 16)})
    report = brought.normalize(skip=["opset", "batch"])
    wanted = ("left out", "left out", 12)
    assert (outcomes(report)["opset"], outcomes(report)["batch"], report.facts.opset_after) == wanted
    assert Signature.read(brought.result(report)).inputs[0].shape == (1, 16)


def test_fixed_input_and_its_branch_are_gone_and_golden_data_still_fit(workspace: Workspaces) -> None:
    samples = {"x": floats(9, 1, 16), "sr": np.full(9, 16000)}
    brought = Brought(workspace(), sample_rates(), samples)
    report = brought.normalize(fix_inputs={"sr": 16000})
    proto = brought.result(report)
    assert [i.name for i in required_inputs(proto.graph)] == ["x"]
    assert [node.op_type for node in proto.graph.node] == ["MatMul", "Add"]
    assert [spec.name for spec in Signature.read(proto).inputs] == ["x"]
    assert (report.failures, report.facts.control_flow, report.facts.same_graph) == ((), {}, False)


def test_input_that_the_samples_vary_is_not_fixed(workspace: Workspaces) -> None:
    samples = {"x": floats(9, 1, 16), "sr": np.array([16000] * 6 + [8000] * 3)}
    report = Brought(workspace(), sample_rates(), samples).normalize(fix_inputs={"sr": 16000})
    (failure,) = report.failures
    assert (failure.name, failure.value) == ("normalize.fix_inputs", 1)
    assert failure.detail == "3 of 9 real samples have another value than 16000 for 'sr'"
    assert outcomes(report)["fix_inputs"] == "undone"


def test_step_that_changes_the_outputs_is_undone_and_the_others_are_kept(workspace: Workspaces) -> None:
    """Each sample less the mean of its batch: with a batch of another size, the outputs are others."""
    proto = onnx_text.model(
        """
        centered (float[2,16] x) => (float[2,4] y) <float[16,4] w>
        { p = MatMul(x, w)  mean = ReduceMean<axes = [0]>(p)  y = Sub(p, mean) }
        """,
        opset=12,
    )
    brought = Brought(workspace(), proto, {"x": floats(8, 16)})
    report = brought.normalize()
    steps = {step.step: step for step in report.facts.steps}
    assert (steps["batch"].outcome, steps["opset"].outcome) == ("undone", "applied")
    assert "'y' changes by" in steps["batch"].reason
    assert Signature.read(brought.result(report)).inputs[0].shape == (2, 16)


def scale_a_weight(proto: onnx.ModelProto, _: Setting) -> str:
    """A deliberately wrong step."""
    tensor = proto.graph.initializer[0]
    tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) * np.float32(1.01), tensor.name))
    return "scaled a weight"


def break_the_graph(proto: onnx.ModelProto, _: Setting) -> str:
    del proto.graph.node[0]
    return "removed a node"


def raise_an_error(proto: onnx.ModelProto, _: Setting) -> str:
    raise RuntimeError("no adapter")


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (scale_a_weight, "'y' changes by"),
        (break_the_graph, "not valid ONNX: "),
        (raise_an_error, "cannot be applied: no adapter"),
    ],
)
def test_wrong_step_is_undone_wherever_it_is(workspace: Workspaces, monkeypatch, wrong, reason: str) -> None:
    monkeypatch.setitem(STEPS, "functions", (wrong,))
    report = Brought(workspace(), opset_12(), {"x": floats(10, 16)}).normalize()
    step = next(step for step in report.facts.steps if step.step == "functions")
    assert step.outcome == "undone"
    assert reason in step.reason
    assert set(outcomes(report).values()) == {"undone", "applied"}
    assert report.facts.opset_after == 17


def test_next_variant_of_a_step_is_tried_when_the_first_is_not_proven(workspace: Workspaces, monkeypatch) -> None:
    monkeypatch.setitem(STEPS, "opset", (scale_a_weight, STEPS["opset"][1]))
    report = Brought(workspace(), opset_12(), {"x": floats(10, 16)}).normalize()
    assert (outcomes(report)["opset"], report.facts.opset_after) == ("applied", 13)


def test_model_that_does_not_run_on_the_golden_inputs_is_passed_on(workspace: Workspaces) -> None:
    brought = Brought(workspace(), opset_12(), {"x": floats(10, 16)})
    wrong = {"x": floats(10, 5)}
    Golden({"real": GoldenCase(wrong, {"y": floats(10, 4)})}, {"y": floats(10, 4)}).save(brought.out.folder / "g.npz")
    brought.golden = brought.out.store_file(brought.out.folder / "g.npz")
    report = brought.normalize()
    assert report.artifacts["normalized"] == brought.model
    assert {step.outcome for step in report.facts.steps} == {"undone"}
    assert "does not run on the golden inputs" in report.facts.steps[0].reason


def test_wrong_stored_shape_no_longer_stops_the_model_and_is_reported(workspace: Workspaces) -> None:
    proto = opset_12()
    proto.graph.value_info.append(helper.make_tensor_value_info("q", TensorProto.FLOAT, [1, 128]))
    brought = Brought(workspace(), proto, {"x": floats(10, 16)})
    assert structure(StructureConfig(), brought.out, model=brought.model).failures
    report = brought.normalize()
    assert not structure(StructureConfig(), brought.out, model=report.artifacts["normalized"]).failures
    (warning,) = [check for check in report.checks if not check.passed]
    assert (warning.name, warning.severity) == ("normalize.source_errors", "warning")


@pytest.mark.parametrize(
    ("model", "precision"),
    [
        (
            """
            half (float[n,16] x) => (float[n,4] y) <float16[16,4] w>
            { h = Cast<to = 10>(x)  p = MatMul(h, w)  y = Cast<to = 1>(p) }
            """,
            "float16",
        ),
        (
            """
            quantized (float[n,16] x) => (float[n,16] y) <float s = {0.1}, uint8 z = {128}>
            { q = QuantizeLinear(x, s, z)  y = DequantizeLinear(q, s, z) }
            """,
            "quantized",
        ),
    ],
)
def test_precision_is_recognized(workspace: Workspaces, model: str, precision: str) -> None:
    report = Brought(workspace(), onnx_text.model(model, opset=13), {"x": floats(6, 16)}).normalize()
    assert report.facts.precision == precision
    assert report.facts.precision_reason
    assert report.facts.opset_after == 17


def test_weights_beside_the_model_stay_beside_it_and_are_whole(
    workspace: Workspaces, tmp_path: Path, monkeypatch
) -> None:
    proto = opset_12()
    signature_from_graph(proto).write(proto)
    path = tmp_path / "external.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    for module in ("tasks.normalize", "gauntlet.onnx_model.model_file"):
        monkeypatch.setattr(f"{module}.is_large_file", lambda _: True)  # its weights are not loaded, as above 2 GB
    brought = Brought(workspace(), path, {"x": floats(10, 16)})
    report = brought.normalize()
    assert "opset" in outcomes(report)
    result = brought.out.path(report.artifacts["normalized"])
    assert len(model_files(result)) == 2
    expected = Golden.load(brought.out.path(brought.golden)).test_outputs["y"]
    np.testing.assert_allclose(open_session(result).run(None, brought.samples)[0], expected, atol=1e-6)
