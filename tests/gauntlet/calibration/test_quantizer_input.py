"""The quantizer's input: graphs that it fails on are mended, and split operators are fused again."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_text
import pytest
from exported_models import with_weights_as_inputs
from onnx import TensorProto, helper, numpy_helper

from gauntlet.calibration.preparation import prepare_for_quantization
from gauntlet.calibration.quantizer_input import mend_graph, name_nodes, raise_opset_for_channels, rename_lookalikes
from gauntlet.onnx_model.graph import import_standard_once, opset_versions
from gauntlet.runtime.session import open_session

X = np.random.default_rng(0).standard_normal((2, 3, 8, 8)).astype(np.float32)


def outputs(proto: onnx.ModelProto) -> list[np.ndarray]:
    return open_session(proto.SerializeToString()).run(None, {"x": X})


def convolution(opset: int) -> onnx.ModelProto:
    text = """
        m (float[n,3,8,8] x) => (float[n,4,10,10] y) <float[4,3,3,3] w>
        { c = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(x, w) y = Pad<pads = [0, 0, 1, 1, 0, 0, 1, 1]>(c) }
    """
    return onnx_text.model(text, opset=opset, ir_version=6)


def test_opset_stays_when_a_body_would_change_its_meaning() -> None:
    """The converter does not enter bodies; Softmax of opset 11 flattens, that of 13 does not."""
    proto = onnx_text.model(
        """
        m (float[n,3,8,8] x) => (float[n,3,8,8] y) <int64 trips = {1}, bool yes = {1}>
        {
            y = Loop(trips, yes, x) <
                body = body (int64 i, bool go, float[a,b,c,d] state) => (bool on, float[a,b,c,d] next) {
                    next = Softmax<axis = 1>(state)
                    on = Identity(go)
                }
            >
        }
        """,
        opset=11,
        ir_version=6,
    )
    before = outputs(proto)
    raise_opset_for_channels(proto)
    assert opset_versions(proto) == {"ai.onnx": 11}
    np.testing.assert_array_equal(outputs(proto)[0], before[0])


def broken(proto: onnx.ModelProto, target: int) -> onnx.ModelProto:
    """Return a model that no runtime accepts: its Conv has lost an input."""
    converted = onnx.ModelProto()
    converted.CopyFrom(proto)
    converted.opset_import[0].version = target
    del converted.graph.node[0].input[1:]
    return converted


def no_adapter(proto: onnx.ModelProto, target: int) -> onnx.ModelProto:
    raise RuntimeError(f"no adapter to version {target}")


@pytest.mark.parametrize("converter", [broken, no_adapter])
def test_model_stays_as_it_is_when_the_converter_fails_or_writes_what_does_not_load(
    monkeypatch: pytest.MonkeyPatch, converter: Callable[[onnx.ModelProto, int], onnx.ModelProto]
) -> None:
    monkeypatch.setattr(onnx.version_converter, "convert_version", converter)
    proto = convolution(opset=9)
    before = proto.SerializeToString()
    raise_opset_for_channels(proto)
    assert proto.SerializeToString() == before


def test_sparse_weights_are_no_obstacle() -> None:
    proto = onnx_text.model("m (float[4] x) => (float[4] y) { one = Constant<value = float {1}>() y = Add(x, one) }")
    values = numpy_helper.from_array(np.ones(1, np.float32), "sparse")
    proto.graph.sparse_initializer.append(
        helper.make_sparse_tensor(values, numpy_helper.from_array(np.zeros(1, np.int64)), [4])
    )
    mend_graph(proto)
    assert [node.name for node in proto.graph.node] == ["Add_0"]
    assert {"one", "sparse"} == {tensor.name for tensor in proto.graph.initializer}


def test_names_stay_when_no_tensor_is_like_another() -> None:
    proto = onnx_text.model("m (float[n,3,8,8] x) => (float[n,3,8,8] y) { bn_scale = Relu(x) y = Neg(bn_scale) }")
    before = proto.SerializeToString()
    rename_lookalikes(proto.graph)
    assert proto.SerializeToString() == before


def test_nodes_get_names_of_their_own() -> None:
    proto = onnx_text.model("m (float[n] x) => (float[n] y) { [a] h = Relu(x) [a] g = Neg(h) y = Abs(g) }")
    name_nodes(proto.graph)
    assert [node.name for node in proto.graph.node] == ["a", "Neg_1", "Abs_2"]


def test_weights_are_neither_inputs_nor_values_with_a_shape_afterwards() -> None:
    proto = with_weights_as_inputs(
        onnx_text.model("m (float[n,8] x) => (float[n,4] y) <float[8,4] w> { y = MatMul(x, w) }")
    )
    proto.graph.value_info.add().CopyFrom(proto.graph.input[1])
    assert [value.name for value in proto.graph.input] == ["x", "w"]
    mend_graph(proto)
    assert [value.name for value in proto.graph.input] == ["x"]
    assert not proto.graph.value_info
    onnx.checker.check_model(proto)


def test_no_shape_is_left_of_a_tensor_that_is_gone_and_named_like_one_of_the_quantizers() -> None:
    proto = onnx_text.model("m (float[n,8] x) => (float[n,8] y) { h = Relu(x) y = Neg(h) }")
    proto.graph.value_info.append(helper.make_tensor_value_info("h", TensorProto.FLOAT, ["n", 8]))
    proto.graph.value_info.append(helper.make_tensor_value_info("x_scale", TensorProto.FLOAT, ["n", 8]))
    mend_graph(proto)
    assert [value.name for value in proto.graph.value_info] == ["h"]


def test_no_shape_of_a_weight_is_left_by_the_converter() -> None:
    """The quantizer transposes the weights, and ONNX refuses the model with the former shape."""
    text = """
        m (float[n,8] x) => (float[n,4] y) <float[4,8] w, float[4] b>
        { c = Clip<min = 0.0, max = 6.0>(x) y = Gemm<transB = 1>(c, w, b) }
    """
    proto = onnx_text.model(text, opset=9)
    mend_graph(proto)
    assert opset_versions(proto) == {"ai.onnx": 13}
    assert {value.name for value in proto.graph.value_info}.isdisjoint(t.name for t in proto.graph.initializer)


def test_weights_that_old_files_must_list_and_do_not_are_no_obstacle() -> None:
    """ONNX Runtime's optimizer folds a batch norm into new weights and keeps the file's IR version 3."""
    proto = convolution(opset=9)
    proto.ir_version = 3
    mend_graph(proto)
    assert opset_versions(proto) == {"ai.onnx": 13}
    assert outputs(proto)[0].shape == (2, 4, 10, 10)


@pytest.mark.parametrize("versions", [(), (15,), (15, 15)])
def test_standard_operators_are_imported_once(versions: tuple[int, ...]) -> None:
    proto = onnx_text.model(
        'm (float[n,4] x) => (float[n,4] y) { y = ai.onnx.ml.Normalizer<norm = "MAX">(x) }', domains={"ai.onnx.ml": 1}
    )
    del proto.opset_import[:]
    proto.opset_import.extend([helper.make_opsetid("ai.onnx.ml", 1), *(helper.make_opsetid("", v) for v in versions)])
    import_standard_once(proto, 13)
    assert sorted((entry.domain, entry.version) for entry in proto.opset_import) == [
        ("", versions[0] if versions else 13),
        ("ai.onnx.ml", 1),
    ]


GATE = "s = HardSigmoid<alpha = 0.16666667, beta = 0.5>(x)"


def save(path: Path, nodes: str, opset: int = 18) -> Path:
    onnx.save(onnx_text.model(f"gates (float[batch,4] x) => (float[batch,4] y) {{ {nodes} }}", opset=opset), path)
    return path


def operators(path: Path) -> list[str]:
    return [node.op_type for node in onnx.load(path).graph.node]


def test_hard_swish_stays_whole_and_answers_the_same(tmp_path: Path) -> None:
    model, prepared = save(tmp_path / "m.onnx", "r = Relu(x) y = HardSwish(r)"), tmp_path / "prepared.onnx"
    prepare_for_quantization(model, prepared)
    assert operators(prepared) == ["Relu", "HardSwish"]
    feed = {"x": np.linspace(-9, 9, 12, dtype=np.float32).reshape(3, 4)}
    np.testing.assert_array_equal(open_session(prepared).run(None, feed)[0], open_session(model).run(None, feed)[0])


@pytest.mark.parametrize(
    ("nodes", "opset"),
    [
        (f"{GATE} y = Mul(x, s)", 13),
        ("s = HardSigmoid(x) y = Mul(s, x)", 18),
        (f"{GATE} y = Mul(s, s)", 18),
        (f"{GATE} y = Add(x, s)", 18),
        (f"{GATE} m = Mul(x, s) y = Add(m, s)", 18),
    ],
    ids=["before opset 14", "another slope", "no gate of x", "a sum", "read twice"],
)
def test_another_gate_is_no_hard_swish(tmp_path: Path, nodes: str, opset: int) -> None:
    model = save(tmp_path / "m.onnx", nodes, opset)
    prepare_for_quantization(model, tmp_path / "prepared.onnx")
    assert operators(tmp_path / "prepared.onnx") == operators(model)


def pooled(path: Path, nodes: str, shape: str = "batch,3,5,5", opset: int = 18) -> Path:
    text = f"""
        pool (float[{shape}] x) => (float[] y)
        <
            int64[2] axes = {{2, 3}}, int64[2] last = {{-1, -2}}, int64[1] one = {{2}},
            int64[4] back = {{-1, 3, 1, 1}}, int64[4] copied = {{0, -1, 1, 1}},
            int64[4] rows = {{-1, 1, 1, 1}}, int64[2] flat = {{-1, 3}}
        >
        {{
            relu = Relu(x)
            {nodes}
        }}
    """
    onnx.save(onnx.shape_inference.infer_shapes(onnx_text.model(text, opset=opset)), path)
    return path


MEAN = "m = ReduceMean<keepdims = 0>(relu, axes)"


@pytest.mark.parametrize(
    ("nodes", "opset"),
    [
        (f"{MEAN} y = Reshape(m, back)", 18),
        ("m = ReduceMean<keepdims = 0>(relu, last) y = Reshape(m, copied)", 18),
        ("y = ReduceMean<keepdims = 1>(relu, axes)", 18),
        ("m = ReduceMean<axes = [2, 3], keepdims = 0>(relu) y = Reshape(m, back)", 13),
    ],
    ids=["dropped and brought back", "counted from the end", "kept", "axes as an attribute"],
)
def test_mean_of_each_channel_is_a_pool_and_answers_the_same(tmp_path: Path, nodes: str, opset: int) -> None:
    model, prepared = pooled(tmp_path / "m.onnx", nodes, opset=opset), tmp_path / "prepared.onnx"
    prepare_for_quantization(model, prepared)
    assert operators(prepared) == ["Relu", "GlobalAveragePool"]
    onnx.checker.check_model(onnx.load(prepared), full_check=True)
    feed = {"x": np.random.default_rng(0).standard_normal((2, 3, 5, 5)).astype(np.float32)}
    ours, theirs = (open_session(path).run(None, feed)[0] for path in (prepared, model))
    assert ours.shape == theirs.shape
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("nodes", "shape"),
    [
        ("m = ReduceMean<keepdims = 0>(relu, one) y = Neg(m)", "batch,3,5,5"),
        (f"{MEAN} y = Reshape(m, rows)", "batch,3,5,5"),
        (f"{MEAN} y = Reshape(m, flat)", "batch,3,5,5"),
        (f"{MEAN} r = Reshape(m, back) y = Sub(r, m)", "batch,3,5,5"),
        (f"{MEAN} y = Reshape(m, back)", "batch,3,5,5,5"),
    ],
    ids=["one axis", "another shape", "no axes brought back", "read twice", "one spatial axis stays"],
)
def test_another_mean_is_no_pool(tmp_path: Path, nodes: str, shape: str) -> None:
    prepare_for_quantization(pooled(tmp_path / "m.onnx", nodes, shape), tmp_path / "prepared.onnx")
    assert "ReduceMean" in operators(tmp_path / "prepared.onnx")


@pytest.mark.parametrize(
    "nodes",
    [
        "g = HardSigmoid<alpha = 0.16666667, beta = 0.5>(relu) h = Mul(relu, g)",
        f"{MEAN} g = Identity(m) h = Reshape(m, back)",
    ],
    ids=["gate", "mean"],
)
def test_what_a_branch_reads_is_not_fused(tmp_path: Path, nodes: str) -> None:
    branches = """
        c = Constant<value_float = 0.0>() s = ReduceSum<keepdims = 0>(relu) b = Greater(s, c)
        y = If(b) <
            then_branch = read () => (float[k] u) { u = Neg(g) },
            else_branch = other () => (float[k] v) { v = Neg(h) }
        >
    """
    model, prepared = pooled(tmp_path / "m.onnx", nodes + branches), tmp_path / "prepared.onnx"
    prepare_for_quantization(model, prepared)
    feed = {"x": np.random.default_rng(0).standard_normal((2, 3, 5, 5)).astype(np.float32)}
    ours, theirs = (open_session(path).run(None, feed)[0] for path in (prepared, model))
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_listed_weight_that_was_folded_is_no_input_afterwards(tmp_path: Path) -> None:
    """Files before IR version 4 list weights among the inputs; ONNX Runtime folds a shape and keeps its input."""
    text = (
        "m (float[n,4] x) => (float[n,2,2] y) <int64[3] shape = {-1, 2, 2}> { s = Identity(shape) y = Reshape(x, s) }"
    )
    proto = with_weights_as_inputs(onnx_text.model(text, opset=9, ir_version=3))
    onnx.save(proto, tmp_path / "m.onnx")
    prepare_for_quantization(tmp_path / "m.onnx", tmp_path / "prepared.onnx")
    assert [value.name for value in onnx.load(tmp_path / "prepared.onnx").graph.input] == ["x"]
