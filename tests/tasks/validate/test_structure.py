"""The gate on the file: each check is seen failing on a model with that very defect."""

from collections.abc import Callable

import onnx
import pytest
from onnx import TensorProto, helper

from tasks.artifact import Artifact
from tasks.errors import StageError
from tasks.report import Report
from tasks.runtime.session import supported_ir_version, supported_opset
from tasks.validate.structure import StructureConfig, StructureFacts, check_structure
from tasks.workspace import Workspace

Inspect = Callable[..., Report[StructureFacts]]
DYNAMIC = ["batch", 3, 32, 32]


@pytest.fixture
def inspect(keep_model: Callable[..., tuple[Workspace, Artifact]]) -> Inspect:
    def run(proto: onnx.ModelProto | bytes, **config: int) -> Report[StructureFacts]:
        out, model = keep_model(proto)
        return check_structure(StructureConfig(**config), out, model=model)

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


def insert(proto: onnx.ModelProto, node: onnx.NodeProto, *constants: onnx.TensorProto) -> None:
    """Put a node behind the input."""
    name = proto.graph.input[0].name
    for other in proto.graph.node:
        other.input[:] = [node.output[0] if used == name else used for used in other.input]
    proto.graph.node.insert(0, node)
    proto.graph.initializer.extend(constants)


def dropout(proto: onnx.ModelProto, training: bool = True) -> None:
    ratio, mode = (helper.make_tensor(n, t, [], [v]) for n, t, v in [("r", 1, 0.5), ("t", TensorProto.BOOL, training)])
    insert(proto, helper.make_node("Dropout", ["input", "r", "t"], ["dropped"], "drop"), ratio, mode)


def batch_norm(proto: onnx.ModelProto) -> None:
    parts = [helper.make_tensor(n, TensorProto.FLOAT, [3], [1.0] * 3) for n in ("scale", "bias", "mean", "var")]
    outputs = ["normed", "new_mean", "new_var"]
    node = helper.make_node("BatchNormalization", ["input", "scale", "bias", "mean", "var"], outputs, "norm")
    node.attribute.append(helper.make_attribute("training_mode", 1))
    insert(proto, node, *parts)


def unknown_operator(proto: onnx.ModelProto) -> None:
    insert(proto, helper.make_node("Sparkle", ["input"], ["odd"], "odd", domain="my.company"))
    proto.opset_import.append(helper.make_opsetid("my.company", 1))


def unknown_standard_operator(proto: onnx.ModelProto) -> None:
    insert(proto, helper.make_node("Sparkle", ["input"], ["odd"], "odd"))


def operator_in_a_branch(proto: onnx.ModelProto) -> None:
    output = [helper.make_tensor_value_info("odd", TensorProto.FLOAT, DYNAMIC)]
    same = helper.make_graph([helper.make_node("Identity", ["input"], ["odd"])], "same", [], output)
    odd = helper.make_graph([helper.make_node("Sparkle", ["input"], ["odd"], domain="my.company")], "odd", [], output)
    node = helper.make_node("If", ["yes"], ["branched"], "if", then_branch=same, else_branch=odd)
    yes = helper.make_tensor("yes", TensorProto.BOOL, [], [True])
    proto.graph.node.insert(0, node)
    proto.graph.initializer.append(yes)
    for other in proto.graph.node[1:]:
        other.input[:] = ["branched" if used == "input" else used for used in other.input]


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
    assert len(report.checks) == len({check.name for check in report.checks}) == 12
    assert report.facts.opsets == {"ai.onnx": 18}
    assert report.facts.nodes == trained.export.facts.nodes == sum(report.facts.operators.values())
    assert report.facts.inputs == {"input": "float[batch, 3, 32, 32]"}
    assert report.facts.outputs == {"logits": "float[batch, 10]"}


def test_structure_has_a_defective_model_for_each_check_when_all_are_listed(trained, inspect: Inspect) -> None:
    checks = {check.name.removeprefix("structure.") for check in inspect(trained.proto()).checks}
    assert checks == {check for check, _ in DEFECTS.values()}


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999])
def test_structure_breaks_or_fails_when_the_file_is_truncated(trained, inspect: Inspect, share: float) -> None:
    content = trained.path.read_bytes()
    try:
        report = inspect(content[: int(share * len(content))])
    except StageError as error:
        assert "model.onnx: not an ONNX model" in str(error)
    else:
        assert {"checker_errors", "runtime_errors"} <= failed(report)


@pytest.mark.parametrize("content", [b"", b"hello", b"\x00" * 100])
def test_structure_breaks_or_fails_when_the_file_is_something_else(inspect: Inspect, content: bytes) -> None:
    try:
        report = inspect(content)
    except StageError as error:
        assert "model.onnx: not an ONNX model" in str(error)
    else:
        assert {"checker_errors", "runtime_errors", "max_opset"} <= failed(report)


def test_structure_refuses_what_an_older_runtime_would_not_take(trained, inspect: Inspect) -> None:
    assert failed(inspect(trained.proto(), max_opset=17)) == {"max_opset"}
    assert failed(inspect(trained.proto(), max_ir_version=7)) == {"max_ir_version"}


def test_structure_accepts_dropout_when_training_mode_is_a_constant_false(trained, inspect: Inspect) -> None:
    proto = trained.proto()
    dropout(proto, training=False)
    assert failed(inspect(proto)) == set()


def test_structure_fails_when_the_training_mode_of_dropout_is_computed(trained, inspect: Inspect) -> None:
    proto = trained.proto()
    dropout(proto)
    proto.graph.node.insert(0, helper.make_node("Not", ["t"], ["computed"]))
    proto.graph.node[1].input[2] = "computed"
    assert "training_nodes" in failed(inspect(proto))


def test_structure_accepts_an_operator_when_the_model_brings_its_function(trained, inspect: Inspect) -> None:
    proto = trained.proto()
    insert(proto, helper.make_node("Twice", ["input"], ["doubled"], domain="my.company"))
    body = [helper.make_node("Add", ["x", "x"], ["y"])]
    opset = [helper.make_opsetid("", proto.opset_import[0].version)]
    proto.functions.append(helper.make_function("my.company", "Twice", ["x"], ["y"], body, opset))
    proto.opset_import.append(helper.make_opsetid("my.company", 1))
    assert failed(inspect(proto)) == set()


def test_structure_accepts_external_data_when_it_lies_beside_the_model(trained, workspace) -> None:
    out = workspace()
    path = out.folder / "model.onnx"
    onnx.save(trained.proto(), path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    model = out.keep(path, out.folder / "weights.bin")
    assert failed(check_structure(StructureConfig(), out, model=model)) == set()
