"""The gate on the file: each check is seen failing on a model with that very defect."""

from collections.abc import Callable

import faulty_models
import onnx
import onnx_text
import pytest
from onnx import TensorProto, helper, parser

from gauntlet.core.artifact import Artifact
from gauntlet.core.errors import StageError
from gauntlet.core.report import Report
from gauntlet.core.workspace import Workspace
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


def sound() -> onnx.ModelProto:
    return faulty_models.signed(faulty_models.cnn())


def with_output(*names: str) -> onnx.ModelProto:
    """Return the sound model with these outputs alone."""
    proto = sound()
    del proto.graph.output[:]
    proto.graph.output.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names)
    return proto


def renamed_input() -> onnx.ModelProto:
    proto = sound()
    proto.graph.input[0].name = proto.graph.node[0].input[0] = "picture"
    return proto


def without_opset() -> onnx.ModelProto:
    proto = sound()
    del proto.opset_import[:]
    return proto


def with_node(text: str) -> onnx.ModelProto:
    """Return the sound model with one more node behind its first."""
    proto = faulty_models.insert(sound(), 1, text)
    proto.opset_import.append(helper.make_opsetid("my.company", 1))
    return proto


BRANCHES = """
    <bool yes = {1}>
    {
        [if] branched = If(yes) <
            then_branch = same () => (float[batch,8,16,16] odd) { odd = Identity(a) },
            else_branch = odd () => (float[batch,8,16,16] odd) { odd = my.company.Sparkle(a) }
        >
    }
"""


def data_at(location: str) -> onnx.ModelProto:
    proto = sound()
    tensor = proto.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.ClearField("float_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    return proto


def signature_of(text: str | None) -> onnx.ModelProto:
    proto = sound()
    del proto.metadata_props[:]
    if text is not None:
        proto.metadata_props.add(key="gauntlet.signature", value=text)
    return proto


def wrong_arity() -> onnx.ModelProto:
    proto = sound()
    proto.graph.node[0].input.extend(["x", "x", "x"])
    return proto


def signed(build: Callable[[], onnx.ModelProto]) -> Callable[[], onnx.ModelProto]:
    return lambda: faulty_models.signed(build())


DEFECTS: dict[str, tuple[Callable[[], onnx.ModelProto], str, str]] = {
    "leaked constant": (signed(faulty_models.leaked_constants), "undeclared_inputs", "model/norm/mean:0"),
    "lost output": (lambda: with_output("a"), "missing_outputs", "y"),
    "repeated output": (lambda: with_output("y", "y"), "repeated_outputs", "y"),
    "inner tensor": (lambda: with_output("y", "a"), "undeclared_outputs", "a"),
    "renamed input": (renamed_input, "missing_inputs", "x"),
    "frozen batch": (signed(faulty_models.frozen_batch), "frozen_batch", "x, y"),
    "newer opset": (signed(faulty_models.newer_opset), "max_opset", ""),
    "no opset": (without_opset, "max_opset", ""),
    "newer ir version": (signed(faulty_models.newer_ir_version), "max_ir_version", ""),
    "dropout": (signed(faulty_models.dropout_that_drops), "training_nodes", "Dropout 'drop'"),
    "batch norm": (signed(faulty_models.batch_norm_that_trains), "training_nodes", "BatchNormalization 'norm'"),
    "operator": (signed(faulty_models.unregistered_operator), "unregistered_operators", "my.company::Sparkle"),
    "standard operator": (lambda: with_node("{ [odd] odd = Sparkle(a) }"), "runtime_errors", "Sparkle"),
    "operator in a branch": (lambda: with_node(BRANCHES), "unregistered_operators", "my.company::Sparkle"),
    "stray data": (lambda: data_at("../../../../etc/passwd"), "external_data_outside", "../../../../etc/passwd"),
    "absent data": (lambda: data_at("weights.bin"), "external_data_outside", "weights.bin"),
    "no signature": (lambda: signature_of(None), "signature", "metadata_props has none"),
    "damaged signature": (lambda: signature_of("{"), "signature", "metadata_props has none"),
    "wrong arity": (wrong_arity, "checker_errors", "Conv"),
}
ALONE = {"frozen batch", "dropout", "no signature", "damaged signature"}


@pytest.mark.parametrize("defect", DEFECTS)
def test_structure_fails_and_shows_the_evidence_when_the_model_has_the_defect(inspect: Inspect, defect: str) -> None:
    build, check, evidence = DEFECTS[defect]
    report = inspect(build())
    assert check in failed(report)
    assert evidence in next(c.detail for c in report.checks if c.name == f"structure.{check}")
    if defect in ALONE:
        assert failed(report) == {check}


def test_structure_passes_when_the_model_is_sound(trained, inspect: Inspect) -> None:
    report = inspect(trained.proto())
    assert failed(report) == failed(inspect(sound())) == set()
    assert len(report.checks) == len({check.name for check in report.checks}) == 14
    assert report.facts.opsets == {"ai.onnx": 18}
    assert report.facts.nodes == trained.export.facts.nodes == sum(report.facts.operators.values())
    assert report.facts.inputs == {"input": "float[batch, 3, 32, 32]"}
    assert report.facts.outputs == {"logits": "float[batch, 10]"}


def test_structure_needs_no_opset_where_no_standard_operator_is(inspect: Inspect) -> None:
    """CatBoost imports `ai.onnx.ml` alone."""
    proto = onnx_text.model(
        'm (float[n,4] x) => (float[n,4] y) { y = ai.onnx.ml.Normalizer<norm = "MAX">(x) }', domains={"ai.onnx.ml": 2}
    )
    del proto.opset_import[0]
    assert failed(inspect(proto)) == {"signature"}


def test_structure_has_a_defective_model_for_each_check_when_all_are_listed(inspect: Inspect) -> None:
    checks = {check.name.removeprefix("structure.") for check in inspect(sound()).checks}
    assert checks == {check for _, check, _ in DEFECTS.values()}


@pytest.mark.parametrize("content", [0.1, 0.5, 0.9, 0.999, b"", b"hello", b"\x00" * 100])
def test_structure_breaks_or_fails_when_the_file_is_truncated_or_something_else(
    inspect: Inspect, content: float | bytes
) -> None:
    whole = sound().SerializeToString()
    try:
        report = inspect(whole[: int(content * len(whole))] if isinstance(content, float) else content)
    except StageError as error:
        assert "model.onnx: not a readable ONNX model" in str(error)
    else:
        assert {"checker_errors", "runtime_errors"} <= failed(report)


def test_structure_refuses_what_an_older_runtime_would_not_take(inspect: Inspect) -> None:
    assert failed(inspect(sound(), max_opset=17)) == {"max_opset"}
    assert failed(inspect(sound(), max_ir_version=7)) == {"max_ir_version"}


def test_training_mode_of_dropout_may_only_be_a_constant_false(inspect: Inspect) -> None:
    text = "<float ratio = {0.5}, bool on = {0}> { [drop] dropped = Dropout(f, ratio, on) }"
    proto = faulty_models.insert(sound(), 6, text)
    assert failed(inspect(proto)) == set()
    onnx_text.extend(proto, "{ computed = Not(on) }", 0)
    next(node for node in proto.graph.node if node.name == "drop").input[2] = "computed"
    assert "training_nodes" in failed(inspect(proto))


def test_structure_accepts_an_operator_when_the_model_brings_its_function(inspect: Inspect) -> None:
    proto = with_node("{ doubled = my.company.Twice(a) }")
    header = '<domain: "my.company", opset_import: ["": 18]>'
    proto.functions.append(parser.parse_function(header + "Twice (x) => (y) { y = Add(x, x) }"))
    assert failed(inspect(proto)) == set()


def test_structure_accepts_external_data_when_it_lies_beside_the_model(workspace) -> None:
    out = workspace()
    path = out.folder / "model.onnx"
    onnx.save(sound(), path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    model = out.store_file(path, out.folder / "weights.bin")
    assert failed(structure(StructureConfig(), out, model=model)) == set()
