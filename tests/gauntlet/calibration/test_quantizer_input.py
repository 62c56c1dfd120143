"""Graphs that ONNX Runtime's quantizer fails on are mended first, and compute the same."""

from collections.abc import Callable

import numpy as np
import onnx
import onnx_text
import pytest
from onnx import helper, numpy_helper
from onnx_models import with_weights_as_inputs

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
    assert [node.name for node in proto.graph.node] == ["Constant_0", "Add_1"]
    assert len(proto.graph.sparse_initializer) == 1


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
