"""The opset is raised, also where the converter errs, and the meaning stays."""

import numpy as np
import onnx
import onnx_text
import pytest
from normalized_models import plain, same_outputs

from gauntlet.core.errors import StageError
from gauntlet.onnx_model.graph import all_nodes, opset_versions
from gauntlet.onnx_model.normalization.opset import raise_opset


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
