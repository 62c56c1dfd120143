"""The gate on the file: each check is seen failing on a model with that very defect."""

from collections.abc import Callable

import onnx
import onnx_text
import pytest
from onnx import TensorProto, helper, parser

from gauntlet.core.artifact import Artifact
from gauntlet.core.errors import StageError
from gauntlet.core.report import Report
from gauntlet.core.workspace import Workspace
from gauntlet.runtime.session import supported_ir_version, supported_opset
from tasks.structure import StructureConfig, StructureFacts, structure

Inspect = Callable[..., Report[StructureFacts]]


@pytest.fixture
def inspect(keep_model: Callable[..., tuple[Workspace, Artifact]]) -> Inspect:
    def run(proto: onnx.ModelProto | bytes, **config: int) -> Report[StructureFacts]:
        out, model = keep_model(proto)
        return structure(StructureConfig(**config), out, model=model)

    return run


def failed(report: Report[StructureFacts]) -> set[str]:
    return {check.name.removeprefix("structure.") for check in report.failures}


def detail(report: Report[StructureFacts], name: str) -> str:
    return next(check.detail for check in report.checks if check.name == f"structure.{name}")


def leak_constant(proto: onnx.ModelProto) -> None:
    """Turn a weight into an input that a caller must give."""
    tensor = proto.graph.initializer.pop(0)
    proto.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))


def lose_output(proto: onnx.ModelProto) -> None:
    inner = proto.graph.node[0].output[0]
    proto.graph.output.pop()
    proto.graph.output.append(helper.make_tensor_value_info(inner, TensorProto.FLOAT, None))


def repeat_output(proto: onnx.ModelProto) -> None:
    proto.graph.output.append(proto.graph.output[0])


def return_an_inner_tensor(proto: onnx.ModelProto) -> None:
    proto.graph.output.append(helper.make_tensor_value_info(proto.graph.node[0].output[0], TensorProto.FLOAT, None))


def rename_input(proto: onnx.ModelProto) -> None:
    old = proto.graph.input[0].name
    proto.graph.input[0].name = "picture"
    for node in proto.graph.node:
        node.input[:] = ["picture" if name == old else name for name in node.input]


def freeze_batch(proto: onnx.ModelProto) -> None:
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 1


def raise_opset(proto: onnx.ModelProto) -> None:
    proto.opset_import[0].version = supported_opset() + 1


def lose_opset(proto: onnx.ModelProto) -> None:
    del proto.opset_import[:]


def raise_ir_version(proto: onnx.ModelProto) -> None:
    proto.ir_version = supported_ir_version() + 1


def insert(proto: onnx.ModelProto, text: str) -> None:
    """Put a node behind the input."""
    onnx_text.extend(proto, text, 0)
    first, *others = proto.graph.node
    for other in others:
        other.input[:] = [first.output[0] if used == "input" else used for used in other.input]


def dropout(proto: onnx.ModelProto, training: int = 1) -> None:
    insert(proto, f"<float r = {{0.5}}, bool t = {{{training}}}> {{ [drop] dropped = Dropout(input, r, t) }}")


def batch_norm(proto: onnx.ModelProto) -> None:
    text = """
        <
            float[3] scale = {1, 1, 1}, float[3] bias = {1, 1, 1},
            float[3] mean = {1, 1, 1}, float[3] var = {1, 1, 1}
        >
        {
            [norm] normed, new_mean, new_var =
                BatchNormalization<training_mode = 1>(input, scale, bias, mean, var)
        }
    """
    insert(proto, text)


def unknown_operator(proto: onnx.ModelProto) -> None:
    insert(proto, "{ [odd] odd = my.company.Sparkle(input) }")
    proto.opset_import.append(helper.make_opsetid("my.company", 1))


def unknown_standard_operator(proto: onnx.ModelProto) -> None:
    insert(proto, "{ [odd] odd = Sparkle(input) }")


def operator_in_a_branch(proto: onnx.ModelProto) -> None:
    text = """
        <bool yes = {1}>
        {
            [if] branched = If(yes) <
                then_branch = same () => (float[batch,3,32,32] odd) { odd = Identity(input) },
                else_branch = odd () => (float[batch,3,32,32] odd) { odd = my.company.Sparkle(input) }
            >
        }
    """
    insert(proto, text)


def stray_data(proto: onnx.ModelProto) -> None:
    tensor = proto.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../../../../etc/passwd")


def absent_data(proto: onnx.ModelProto) -> None:
    stray_data(proto)
    proto.graph.initializer[0].external_data[0].value = "weights.bin"


def lose_signature(proto: onnx.ModelProto) -> None:
    del proto.metadata_props[:]


def damage_signature(proto: onnx.ModelProto) -> None:
    proto.metadata_props[0].value = "{"


def wrong_arity(proto: onnx.ModelProto) -> None:
    proto.graph.node[0].input.extend(["input", "input", "input"])


DEFECTS = {
    leak_constant: ("undeclared_inputs", "14.weight"),
    lose_output: ("missing_outputs", "logits"),
    repeat_output: ("repeated_outputs", "logits"),
    return_an_inner_tensor: ("undeclared_outputs", "Conv_output_0"),
    rename_input: ("missing_inputs", "input"),
    freeze_batch: ("frozen_batch", "input, logits"),
    raise_opset: ("max_opset", ""),
    lose_opset: ("max_opset", ""),
    raise_ir_version: ("max_ir_version", ""),
    dropout: ("training_nodes", "Dropout 'drop'"),
    batch_norm: ("training_nodes", "BatchNormalization 'norm'"),
    unknown_operator: ("unregistered_operators", "my.company::Sparkle"),
    unknown_standard_operator: ("runtime_errors", "Sparkle"),
    operator_in_a_branch: ("unregistered_operators", "my.company::Sparkle"),
    stray_data: ("external_data_outside", "../../../../etc/passwd"),
    absent_data: ("external_data_outside", "weights.bin"),
    lose_signature: ("signature", "metadata_props has none"),
    damage_signature: ("signature", "metadata_props has none"),
    wrong_arity: ("checker_errors", "Conv"),
}
ALONE = {freeze_batch, dropout, lose_signature, damage_signature}


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda f: f.__name__)
def test_structure_fails_and_shows_the_evidence_when_the_model_has_the_defect(
    trained, inspect: Inspect, defect: Callable[[onnx.ModelProto], None]
) -> None:
    check, evidence = DEFECTS[defect]
    proto = trained.proto()
    defect(proto)
    report = inspect(proto)
    assert check in failed(report)
    assert evidence in detail(report, check)
    if defect in ALONE:
        assert failed(report) == {check}


def test_structure_passes_when_the_model_is_sound(trained, inspect: Inspect) -> None:
    report = inspect(trained.proto())
    assert failed(report) == set()
    assert len(report.checks) == len({check.name for check in report.checks}) == 14
    assert report.facts.opsets == {"ai.onnx": 18}
    assert report.facts.nodes == trained.export.facts.nodes == sum(report.facts.operators.values())
    assert report.facts.inputs == {"input": "float[batch, 3, 32, 32]"}
    assert report.facts.outputs == {"logits": "float[batch, 10]"}


def test_structure_needs_no_opset_where_no_standard_operator_is(trained, inspect: Inspect) -> None:
    """CatBoost imports `ai.onnx.ml` alone."""
    proto = onnx_text.model(
        'm (float[n,4] x) => (float[n,4] y) { y = ai.onnx.ml.Normalizer<norm = "MAX">(x) }', domains={"ai.onnx.ml": 2}
    )
    del proto.opset_import[0]
    assert failed(inspect(proto)) == {"signature"}


def test_structure_has_a_defective_model_for_each_check_when_all_are_listed(trained, inspect: Inspect) -> None:
    checks = {check.name.removeprefix("structure.") for check in inspect(trained.proto()).checks}
    assert checks == {check for check, _ in DEFECTS.values()}


@pytest.mark.parametrize("content", [0.1, 0.5, 0.9, 0.999, b"", b"hello", b"\x00" * 100])
def test_structure_breaks_or_fails_when_the_file_is_truncated_or_something_else(
    trained, inspect: Inspect, content: float | bytes
) -> None:
    whole = trained.path.read_bytes()
    try:
        report = inspect(whole[: int(content * len(whole))] if isinstance(content, float) else content)
    except StageError as error:
        assert "model.onnx: not a readable ONNX model" in str(error)
    else:
        assert {"checker_errors", "runtime_errors"} <= failed(report)


def test_structure_refuses_what_an_older_runtime_would_not_take(trained, inspect: Inspect) -> None:
    assert failed(inspect(trained.proto(), max_opset=17)) == {"max_opset"}
    assert failed(inspect(trained.proto(), max_ir_version=7)) == {"max_ir_version"}


def test_structure_accepts_dropout_when_training_mode_is_a_constant_false(trained, inspect: Inspect) -> None:
    proto = trained.proto()
    dropout(proto, training=0)
    assert failed(inspect(proto)) == set()


def test_structure_fails_when_the_training_mode_of_dropout_is_computed(trained, inspect: Inspect) -> None:
    proto = trained.proto()
    dropout(proto)
    onnx_text.extend(proto, "{ computed = Not(t) }", 0)
    proto.graph.node[1].input[2] = "computed"
    assert "training_nodes" in failed(inspect(proto))


def test_structure_accepts_an_operator_when_the_model_brings_its_function(trained, inspect: Inspect) -> None:
    proto = trained.proto()
    insert(proto, "{ doubled = my.company.Twice(input) }")
    header = f'<domain: "my.company", opset_import: ["": {proto.opset_import[0].version}]>'
    proto.functions.append(parser.parse_function(header + "Twice (x) => (y) { y = Add(x, x) }"))
    proto.opset_import.append(helper.make_opsetid("my.company", 1))
    assert failed(inspect(proto)) == set()


def test_structure_accepts_external_data_when_it_lies_beside_the_model(trained, workspace) -> None:
    out = workspace()
    path = out.folder / "model.onnx"
    onnx.save(trained.proto(), path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    model = out.store_file(path, out.folder / "weights.bin")
    assert failed(structure(StructureConfig(), out, model=model)) == set()
