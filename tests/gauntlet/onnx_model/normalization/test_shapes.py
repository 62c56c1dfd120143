"""Steps of normalization: the opset is raised, padding is made explicit, and shapes are known."""

import numpy as np
import onnx
import onnx_text
import pytest
from brought_model import Brought, Workspaces, floats
from normalized_models import X, outputs, plain, same_outputs, sample_rates
from onnx import TensorProto, helper

from gauntlet.core.errors import GateFailed, StageError
from gauntlet.onnx_model.graph import all_nodes, opset_versions, required_inputs, tensor_shape
from gauntlet.onnx_model.normalization.batch import fixed_batch, free_batch
from gauntlet.onnx_model.normalization.fixed_inputs import fix_inputs
from gauntlet.onnx_model.normalization.opset import raise_opset
from gauntlet.onnx_model.normalization.shapes import conflicting_shapes, infer_shapes_anew, keep_zero_padding
from gauntlet.runtime.session import open_session
from tasks.numerics import NumericsConfig, numerics


def test_wrong_stored_shapes_are_inferred_again() -> None:
    proto = plain()
    proto.graph.value_info.append(helper.make_tensor_value_info("p", TensorProto.FLOAT, ["n", 128]))
    with pytest.raises(Exception, match="128"):
        onnx.checker.check_model(proto, full_check=True)
    assert conflicting_shapes(proto) == {"p": (("n", 128), ("n", 4))}
    assert "1 stored ones were wrong: 'p' was stored as [n, 128] and is [n, 4]" in infer_shapes_anew(proto)
    onnx.checker.check_model(proto, full_check=True)


def test_wrong_shape_of_an_output_is_corrected() -> None:
    proto = plain()
    proto.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 512]))
    assert infer_shapes_anew(proto)
    assert tensor_shape(proto.graph.output[0]) == ("n", 4)


def test_shapes_that_cannot_be_inferred_are_kept_as_stored() -> None:
    text = "own (float[1,16] x) => (float[1,16] y) { h = com.microsoft.QuickGelu(x)  y = Relu(h) }"
    proto = onnx_text.model(text, domains={"com.microsoft": 1})
    proto.graph.value_info.append(helper.make_tensor_value_info("h", TensorProto.FLOAT, [1, 16]))
    assert infer_shapes_anew(proto, always=True)
    assert {v.name: tensor_shape(v) for v in proto.graph.value_info}["h"] == (1, 16)


def test_fixed_batch_is_found_and_made_dynamic() -> None:
    proto = onnx_text.model("""
        frozen (float[1,16] x) => (float[1,4,4] y) <int64[3] shape = {1, 4, 4}>
        { r = Relu(x)  y = Reshape(r, shape) }
    """)
    assert fixed_batch(proto.graph) == (1, "")
    assert "from 1 Reshape" in free_batch(proto, required_inputs(proto.graph), 1)
    assert outputs(proto, x=np.repeat(X, 3, axis=0))[0].shape == (3, 4, 4)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (plain(), "the batch is dynamic"),
        (sample_rates(), "no first axis of one size"),
        (onnx_text.model("two (float[1,16] x) => (float[16,1] y) { y = Transpose(x) }"), "no first axis of one size"),
    ],
)
def test_model_without_a_fixed_batch_says_why(model: onnx.ModelProto, reason: str) -> None:
    size, why = fixed_batch(model.graph)
    assert size is None
    assert reason in why


def test_branch_over_the_whole_batch_keeps_it_fixed() -> None:
    proto = sample_rates()
    fix_inputs(proto, {"sr": 1})
    assert fixed_batch(proto.graph) == (None, "control flow decides for all samples of a call at once")


PADDED = """padded (float[n,3,8,8] x) => (float[n,3,5,5] y)
<int64[8] pads = {{0,0,1,1,0,0,1,1}}, float zero = {{0.0}}, float one = {{1.0}}>
{{ {before}
   p = Pad{mode}({values})
   y = MaxPool<kernel_shape = [2,2], strides = [2,2]>(p) }}"""
NEGATIVE = -1 - np.abs(floats(20, 3, 8, 8))


def padded(values: str = "x, pads, zero", before: str = "", mode: str = "", opset: int = 17) -> onnx.ModelProto:
    return onnx_text.model(PADDED.format(values=values, before=before, mode=mode), opset=opset)


OLD = '<mode = "constant", pads = [0,0,1,1,0,0,1,1], value = 0.0>'


@pytest.mark.parametrize(
    ("values", "opset", "mode"),
    [("x, pads, zero", 17, ""), ("x, pads", 13, ""), ("x, pads, zero", 23, ""), ("x", 9, OLD)],
)
def test_padding_that_the_runtime_forgets_is_kept_and_nothing_else_is_shipped(
    workspace: Workspaces, values: str, opset: int, mode: str
) -> None:
    brought = Brought(workspace(), padded(values, mode=mode, opset=opset), {"x": NEGATIVE})
    wrong = numerics(NumericsConfig(), brought.out, model=brought.model, golden=brought.golden)
    with pytest.raises(GateFailed, match=r"right without the graph optimizations of ONNX Runtime"):
        wrong.raise_if_blocked()
    report = brought.normalize()
    assert report.facts.repaired
    kept = report.artifacts["normalized"]
    numerics(NumericsConfig(), brought.out, model=kept, golden=brought.golden).raise_if_blocked()
    (outputs,) = open_session(brought.out.path(kept)).run(None, {"x": NEGATIVE})
    assert outputs.max() == pytest.approx(0, abs=1e-30)  # the zeros at the edges


def test_padding_is_kept_in_a_network_that_rounds_otherwise_in_other_batches(workspace: Workspaces) -> None:
    rounding = "n = Shape<end = 1>(x) f = Cast<to = 1>(n) s = Constant<value = float {1.2e-5}>() e = Mul(f, s)"
    proto = padded("z, pads, zero", before=f"{rounding} z = Add(x, e)")
    assert Brought(workspace(), proto, {"x": NEGATIVE}).normalize().facts.repaired


@pytest.mark.parametrize(
    "proto",
    [
        padded("x, pads, one"),
        padded("r, pads, zero", before="r = Relu(x)"),  # the runtime may move it: the maximum is the same
        padded("x, pads", mode='<mode = "reflect">'),
    ],
)
def test_other_padding_is_left_alone(proto: onnx.ModelProto) -> None:
    assert keep_zero_padding(proto) == ""


def test_opset_is_raised_in_branches_and_what_the_converter_adds_is_lifted() -> None:
    proto = onnx_text.model(
        """
        old (float[1,16] x, bool c) => (float[1,1,8] y) <float[16,8] w>
        {
            a = MatMul(x, w)
            s = If(c) <
                then_branch = t () => (float[1,8] q) { q = Softmax<axis = 1>(a) },
                else_branch = e () => (float[1,8] r) { r = Neg(a) }
            >
            y = Unsqueeze<axes = [0]>(s)
        }
        """,
        opset=11,
        ir_version=6,
    )
    assert (
        same_outputs(proto, lambda p: raise_opset(p, 17, 10), c=np.array(True)) == "opset 11 to 17, IR version 6 to 8"
    )
    assert opset_versions(proto) == {"ai.onnx": 17}
    assert not [node for node in all_nodes(proto.graph) if node.op_type == "Constant"]


@pytest.mark.parametrize(
    ("text", "opset", "kinds"),
    [
        ('<float[4] s = {1, 1, 1.5, 3}> { y = Upsample<mode = "linear">(x, s) }', 9, ["Resize"]),
        ('<float[4] s = {1, 1, 1.5, 3}> { y = Upsample<mode = "nearest">(x, s) }', 9, ["Resize"]),
        ('<float[4] s = {1, 1, 0.5, 3}> { y = Resize<mode = "linear">(x, s) }', 10, ["Resize"]),
        ('<float[4] s = {1, 1, 0.5, 3}> { y = Resize<mode = "nearest">(x, s) }', 10, ["Resize"]),
        ("{ y = Softmax<axis = 3>(x) }", 9, ["Softmax"]),
        ("{ y = LogSoftmax<axis = -1>(x) }", 11, ["LogSoftmax"]),
        ("{ y = Hardmax<axis = 3>(x) }", 9, ["Hardmax"]),
        ("{ y = Softmax<axis = 1>(x) }", 9, ["Shape", "Flatten", "Softmax", "Reshape"]),
    ],
)
def test_operator_that_the_converter_gets_wrong_keeps_its_meaning(text: str, opset: int, kinds: list[str]) -> None:
    proto = onnx_text.model(f"old (float[1,2,4,4] x) => (float[a,b,c,d] y) {text}", opset=opset, ir_version=4)
    x = np.random.default_rng(4).standard_normal((1, 2, 4, 4)).astype(np.float32)
    assert same_outputs(proto, lambda p: raise_opset(p, 17, 10), x=x) == f"opset {opset} to 17, IR version 4 to 8"
    assert [node.op_type for node in proto.graph.node] == kinds


def test_opset_stops_at_the_last_version_that_the_converter_reaches(monkeypatch: pytest.MonkeyPatch) -> None:
    real = onnx.version_converter.convert_version

    def convert(proto: onnx.ModelProto, target: int) -> onnx.ModelProto:
        if target > 14:
            raise RuntimeError("no adapter for Reshape")
        return real(proto, target)

    monkeypatch.setattr(onnx.version_converter, "convert_version", convert)
    proto = plain(9)
    assert raise_opset(proto, 17, 10) == "opset 9 to 14; not further: no adapter for Reshape"
    proto = plain(13)
    with pytest.raises(StageError, match="opset 13 cannot be converted to 17: no adapter for Reshape"):
        raise_opset(proto, 17, 10, least=15)


def test_model_without_standard_operators_has_no_opset_to_raise() -> None:
    proto = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["ai.onnx.ml": 3]> m (float[n,16] x) => (float[n,16] y) '
        "{ y = ai.onnx.ml.Scaler<offset = [0.0], scale = [1.0]>(x) }"
    )
    assert raise_opset(proto, 17, 10) == ""
