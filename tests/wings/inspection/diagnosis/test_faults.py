"""Each fault, built on purpose, is caught with the right words, as is what a target does not take."""

from collections.abc import Callable
from pathlib import Path

import faulty_models
import numpy as np
import onnx
import onnx_text
import pytest
import transformer_models

from gauntlet.core.errors import StageError
from gauntlet.targets import by_name
from wings.inspection.library.diagnosis import diagnose
from wings.inspection.library.diagnosis.faults import slow_first_call
from wings.inspection.library.diagnosis.findings import ALWAYS_LISTED, TITLES, CallerHints, Diagnosis, Finding, Timing
from wings.inspection.library.diagnosis.target_support import check_targets, count_operators, onnx_targets
from wings.weight_only.recipe import WeightOnly

Ask = Callable[..., Diagnosis]


@pytest.fixture
def ask(tmp_path: Path) -> Ask:
    def run(proto: onnx.ModelProto | bytes, timeout_s: float | None = None, **evidence: object) -> Diagnosis:
        path = tmp_path / "model.onnx"
        path.write_bytes(proto if isinstance(proto, bytes) else proto.SerializeToString())
        return diagnose(path, CallerHints.model_validate(evidence), timeout_s)

    return run


def only(diagnosis: Diagnosis) -> Finding:
    assert len(diagnosis.findings) == 1, diagnosis.findings
    assert "\n" not in diagnosis.findings[0].cause + diagnosis.findings[0].fix
    return diagnosis.findings[0]


def test_time_limit_that_is_too_short_names_its_option(ask: Ask, apart: None) -> None:
    with pytest.raises(StageError, match=r"timed out after 0\.01 s\. Fix: raise the limit with --timeout$"):
        ask(faulty_models.frozen_batch(), 0.01)


FAULTS = {
    faulty_models.batch_norm_that_trains: (
        "training_mode",
        "error",
        ["BatchNormalization 'norm'", "is in training mode"],
        "eval()",
    ),
    faulty_models.dropout_that_drops: ("training_mode", "error", ["Dropout 'drop'"], "evaluation mode"),
    faulty_models.newer_opset: ("too_new", "error", ["opset 28", "supported:"], "opset"),
    faulty_models.newer_ir_version: ("too_new", "error", ["IR version 14"], "--fix"),
    faulty_models.frozen_batch: ("frozen_batch", "error", ["'x' [1, 3, 16, 16]", "fixed at 1"], "named batch axis"),
    faulty_models.reshape_with_batch: (
        "frozen_batch",
        "error",
        ["declared dynamic and is not", "batch 1 runs and batch 2 does not", "Reshape 'flatten'"],
        "-1 or 0",
    ),
    faulty_models.reshape_that_mixes_samples: (
        "frozen_batch",
        "error",
        ["'z' has the shape (1, 20)", "'tail'"],
        "--fix",
    ),
    faulty_models.unregistered_operator: ("unregistered_operator", "error", ["my.company::Sparkle"], "libraries"),
    faulty_models.operator_of_a_later_opset: (
        "unregistered_operator",
        "error",
        ["Gelu exists from opset 20"],
        "opset 20",
    ),
    faulty_models.missing_shapes: (
        "missing_shapes",
        "warning",
        ["no known shape", "Conv 'conv2'"],
        "quant_pre_process",
    ),
    faulty_models.leaked_constants: (
        "leaked_constant",
        "error",
        ["'model/norm/mean:0' float[1, 3, 1, 1]", "required input"],
        "--constants FILE.npz",
    ),
    faulty_models.old_opset: ("old_opset", "warning", ["opset 11", "needs 13"], "--fix"),
    faulty_models.constant_weight: ("constant_weights", "warning", ["Conv 'conv2'", "1 in all"], "--fix"),
    faulty_models.default_input: ("default_inputs", "warning", ["such as 'w2'"], "keep_initializers_as_inputs"),
    faulty_models.constant_branch: ("constant_branch", "warning", ["1 of 1 If nodes"], "--fix"),
    faulty_models.forgotten_padding: ("forgotten_padding", "error", ["zeros of 'p'"], "--fix"),
    faulty_models.local_function: ("local_functions", "warning", ["such as 'twice'"], "--fix"),
    faulty_models.wrong_shape: (
        "wrong_shapes",
        "error",
        ["'c' is stored as [batch, 128, 7, 7] and is [batch, 6, 7, 7]"],
        "--fix",
    ),
    faulty_models.unused_node: ("unused_nodes", "warning", ["Neg 'idle'"], "--fix"),
    faulty_models.joined_head: ("shared_scale", "warning", ["Concat 'join'", "one INT8 scale"], "float_head: true"),
    faulty_models.repeated_name: ("repeated_names", "error", ["1 nodes have the name"], "--fix"),
    faulty_models.unsorted: ("unsorted_nodes", "error", ["Relu 'relu1' comes before"], "--fix"),
    faulty_models.unread_input: ("leaked_constant", "error", ["no node reads it"], "--fix"),
}


@pytest.mark.parametrize("build", FAULTS, ids=lambda f: f.__name__)
def test_fault_is_found_alone_and_in_the_right_words(ask: Ask, build: Callable[[], onnx.ModelProto]) -> None:
    fault, severity, words, way_out = FAULTS[build]
    others = {"missing_shapes"} if fault == "unregistered_operator" else set()  # inference ends there too
    diagnosis = ask(build())
    found = next(finding for finding in diagnosis.findings if finding.fault == fault)
    assert {finding.fault for finding in diagnosis.findings} - others == {fault}
    assert (found.fault, found.severity) == (fault, severity)
    for word in words:
        assert word in found.cause
    assert way_out in found.fix
    assert "\n" not in found.cause + found.fix
    assert bool(diagnosis.errors) == (severity == "error")


@pytest.mark.parametrize(
    "build",
    [faulty_models.cnn, faulty_models.nhwc, faulty_models.branches, lambda: faulty_models.signed(faulty_models.cnn())],
)
def test_sound_model_has_no_finding(ask: Ask, apart: None, build: Callable[[], onnx.ModelProto]) -> None:
    diagnosis = ask(build())
    assert diagnosis.findings == ()
    assert diagnosis.batches == (1, 2, 3)
    assert set(diagnosis.unchecked) <= {"wrong_layout"}
    assert diagnosis.timing is not None
    assert 10e6 < diagnosis.peak_rss_bytes < 500e6


def test_head_whose_scores_and_boxes_are_apart_has_no_finding(ask: Ask) -> None:
    assert ask(faulty_models.joined_head(apart=True)).findings == ()


def test_real_exported_model_has_no_finding(trained, ask: Ask) -> None:
    diagnosis = ask(trained.proto())
    assert diagnosis.findings == ()
    assert diagnosis.unchecked == {}  # its signature says the layout
    assert diagnosis.nodes == trained.export.facts.nodes


def test_batch_in_a_reshape_is_found_when_only_another_size_runs(ask: Ask) -> None:
    found = only(ask(faulty_models.reshape_with_batch(first=4)))
    assert "batch 4 runs and batch 1 does not" in found.cause
    assert found.fixable


def test_frozen_batch_is_none_when_the_signature_says_so(ask: Ask) -> None:
    fixed = faulty_models.signed(faulty_models.frozen_batch(), shape=(1, 3, 16, 16))
    assert ask(fixed).findings == ()
    assert only(ask(faulty_models.signed(faulty_models.frozen_batch()))).fault == "frozen_batch"


@pytest.mark.parametrize(
    ("build", "given", "takes"),
    [(faulty_models.cnn, "NHWC", "NCHW"), (faulty_models.nhwc, "NCHW", "NHWC")],
    ids=["cnn", "nhwc"],
)
def test_wrong_layout_is_found_from_the_option_the_data_and_the_signature(
    ask: Ask, tmp_path: Path, build: Callable[[], onnx.ModelProto], given: str, takes: str
) -> None:
    shape = (8, 3, 16, 16) if given == "NCHW" else (8, 16, 16, 3)
    data = tmp_path / "data.npz"
    np.savez(data, x=np.zeros(shape, np.float32))
    for diagnosis in (ask(build(), layout=given), ask(build(), data=data), ask(faulty_models.signed(build(), given))):
        found = only(diagnosis)
        assert found.fault == "wrong_layout"
        assert (
            f"'x' expects {takes} (3 channels on axis {1 if takes == 'NCHW' else 3}, as Conv 'conv1' reads it)"
            in found.cause
        )
        assert found.cause.endswith(given)
    right = np.zeros((8, 3, 16, 16) if takes == "NCHW" else (8, 16, 16, 3), np.float32)
    np.savez(data, x=right)
    assert ask(build(), data=data).findings == ask(build(), layout=takes).findings == ()


def test_leaked_constants_are_told_by_signature_and_by_data(ask: Ask, tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=np.zeros((2, 3, 16, 16), np.float32))
    for diagnosis in (
        ask(faulty_models.signed(faulty_models.leaked_constants())),
        ask(faulty_models.leaked_constants(), data=tmp_path / "data.npz"),
    ):
        found = only(diagnosis)
        assert (found.fault, found.severity, found.fixable) == ("leaked_constant", "error", False)
        assert "no caller provides it" in found.cause


def test_second_input_of_its_own_is_only_a_warning(ask: Ask) -> None:
    proto = faulty_models.leaked_constants()
    proto.graph.input.pop()  # without the one that nothing reads, only its fixed shape speaks against the other
    assert only(ask(proto)).severity == "warning"


def test_slow_first_call_is_found_with_its_milliseconds(ask: Ask, impatient: None) -> None:
    found = only(ask(faulty_models.slow_first_call()))
    assert (found.fault, found.severity) == ("slow_first_call", "warning")
    assert "creating the session" in found.cause
    assert " ms" in found.cause
    assert found.fixable


@pytest.mark.parametrize(
    ("session", "call", "steady", "slow"),
    [(900, 50, 1, False), (990, 20, 1, True), (5, 1500, 2, True), (2000, 100, 500, False), (30, 400, 1, False)],
)
def test_slow_takes_both_a_ratio_and_a_wait(session: float, call: float, steady: float, slow: bool) -> None:
    timing = Timing(session_ms=session, first_call_ms=call, steady_ms=steady)
    found = slow_first_call.find(timing)
    assert (found is not None) == slow
    if found is not None:
        assert found.fixable == (session > call)


def test_external_data_is_never_opened_outside(ask: Ask) -> None:
    for place, words in {"../../etc/passwd": "outside", "/etc/passwd": "absolute", "gone.bin": "missing"}.items():
        proto = faulty_models.cnn()
        tensor = proto.graph.initializer[0]
        tensor.ClearField("raw_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=place)
        found = only(ask(proto))
        assert found.fault == "external_data"
        assert place in found.cause
        assert words in found.cause


def test_every_fault_is_built_here() -> None:
    found = {fault for fault, *_ in FAULTS.values()} | {"wrong_layout", "slow_first_call"}
    assert set(ALWAYS_LISTED) <= found
    assert found | {"external_data", "invalid_model", "unrunnable"} == set(TITLES)


@pytest.fixture
def waves(tmp_path: Path) -> Path:
    """A model with two nodes that CoreML has no operator for, one of them in a branch."""
    text = """
        m (float[n,4] x, bool up) => (float[n,4] y) {
            s = Sin(x)
            y = If(up) <
                then_branch = t () => (float[n,4] a) { a = Relu(s) },
                else_branch = e () => (float[n,4] b) { b = Sin(s) }
            >
        }
    """
    onnx.save(onnx_text.model(text), tmp_path / "waves.onnx")
    return tmp_path / "waves.onnx"


def test_processor_takes_every_node_of_the_graph_as_it_is(waves: Path) -> None:
    [support] = check_targets(waves, [by_name("ort-cpu")])
    assert (support.nodes_elsewhere, support.refused, support.unknown) == (0, None, None)
    assert support.nodes >= 2
    assert support.source.startswith("onnxruntime ")


def test_operator_without_a_kernel_is_refused_by_name(tmp_path: Path) -> None:
    text = "m (float[1,8,8,4] x, float[4] g, float[4] b) => (float[1,8,8,4] y) "
    text += "{ y = com.microsoft.GroupNorm<groups = 2, activation = 0>(x, g, b) }"
    onnx.save(onnx_text.model(text, domains={"com.microsoft": 1}), tmp_path / "norm.onnx")
    [support] = check_targets(tmp_path / "norm.onnx", [by_name("ort-cpu")])
    assert support.nodes is None
    assert "GroupNorm" in support.refused


def test_device_elsewhere_leaves_undocumented_operators_to_the_processor(waves: Path) -> None:
    assert count_operators(waves) == {"Sin": 2, "If": 1, "Relu": 1}
    [support] = check_targets(waves, [by_name("ort-coreml")])
    assert support.elsewhere == {"CPUExecutionProvider": {"Sin": 2, "If": 1}}
    assert (support.nodes, support.nodes_elsewhere) == (4, 3)
    assert "CoreML" in support.source


def test_stored_weights_run_on_the_processor_where_a_device_does_not_document_them(tmp_path: Path) -> None:
    onnx.save(transformer_models.encoder(1), tmp_path / "encoder.onnx")
    WeightOnly(min_weights=1024).quantize(tmp_path / "encoder.onnx", None, None, tmp_path / "q.onnx")
    here, there = check_targets(tmp_path / "q.onnx", [by_name("ort-cpu"), by_name("ort-coreml")])
    assert (here.refused, here.nodes_elsewhere) == (None, 0)
    assert there.elsewhere["CPUExecutionProvider"]["com.microsoft::MatMulNBits"] == 6


def test_target_that_cannot_say_it_here_says_why(waves: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GAUNTLET_HOME", str(tmp_path))
    openvino, torch = check_targets(waves, [by_name("openvino-f32"), by_name("torch-eager")])
    assert "gauntlet targets install openvino" in openvino.unknown
    assert torch.refused == "it runs its framework's own file (.pt2, .torchscript, .pt), not ONNX"


def test_default_targets_are_one_of_each_kind_that_runs_onnx() -> None:
    kinds = [target.kind for target in onnx_targets()]
    assert len(set(kinds)) == len(kinds)
    assert {"ort-cpu", "openvino", "ort-cuda"} <= set(kinds)
    assert "torch-eager" not in kinds
