"""The gate on the numbers: what computes something else fails; limits follow each output's range and rounding."""

import math
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_text
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper

from gauntlet.core.artifact import Artifact
from gauntlet.core.report import Report
from gauntlet.core.signature import Task, signature_from_graph
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.golden import Golden, GoldenCase
from gauntlet.datasets.splits import ArraySplit
from gauntlet.metrics.output_comparison import Tolerances, output_difference
from tasks.numerics import NumericsConfig, NumericsFacts, numerics
from tasks.numerics.amplified_rounding import amplified_rounding

Compare = Callable[..., Report[NumericsFacts]]
Keep = Callable[..., tuple[Workspace, Artifact]]


@pytest.fixture
def compare(trained, keep_model: Callable[..., tuple[Workspace, Artifact]]) -> Compare:
    def run(proto: onnx.ModelProto, **config: object) -> Report[NumericsFacts]:
        out, model = keep_model(proto, trained.store)
        return numerics(NumericsConfig.model_validate(config), out, model=model, golden=trained.golden)

    return run


def failed(report: Report[NumericsFacts]) -> set[str]:
    return {check.name.removeprefix("numerics.") for check in report.failures}


def change_weights(proto: onnx.ModelProto, op_type: str, number: int, change: Callable[[np.ndarray], object]) -> None:
    """Change the weights of the n-th node of a type, in place."""
    node = [n for n in proto.graph.node if n.op_type == op_type][number]
    tensor = next(t for t in proto.graph.initializer if t.name == node.input[1])
    values = numpy_helper.to_array(tensor).copy()
    change(values)
    tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))


def at(index: tuple[int, ...], change: Callable[[float], float]) -> Callable[[np.ndarray], None]:
    def apply(values: np.ndarray) -> None:
        values[index] = change(values[index])

    return apply


def set_axis(values: list[onnx.ValueInfoProto], axis: int, size: int) -> None:
    for value in values:
        value.type.tensor_type.shape.dim[axis].dim_value = size


def test_numerics_pass_when_the_model_is_the_exported_one(trained, compare: Compare) -> None:
    report = compare(trained.proto())
    assert failed(report) == set()
    assert report.facts.samples == {"real": 32, "random": 32}
    assert {(row.data, row.batch) for row in report.facts.comparisons} == {
        (data, batch) for data in ("real", "random") for batch in (1, 2, 3, 7)
    }
    assert all(row.max_abs_error < 1e-5 for row in report.facts.comparisons)
    assert report.facts.first_divergence is None


@pytest.mark.parametrize(("conv", "module"), [(0, "0"), (1, "4"), (2, "8")])
def test_numerics_fail_and_name_the_layer_when_one_weight_is_wrong(
    trained, compare: Compare, conv: int, module: str
) -> None:
    proto = trained.proto()
    change_weights(proto, "Conv", conv, at((0, 0, 1, 1), lambda w: w + 1.0))
    report = compare(proto)
    assert "max_rel_error" in failed(report)
    assert f"'/{module}/Conv_output_0' (Conv, module '{module}'" in str(report.facts.first_divergence)
    for check in report.failures:
        assert f"'/{module}/Conv_output_0'" in check.detail
        assert check.name in check.remedy


def test_numerics_find_no_inner_tensor_when_only_the_last_layer_is_wrong(trained, compare: Compare) -> None:
    proto = trained.proto()
    change_weights(proto, "Gemm", 0, at((3, 5), lambda w: w + 1.0))
    report = compare(proto)
    assert "max_rel_error" in failed(report)
    assert report.facts.first_divergence is None
    assert "no intermediate tensor diverges" in report.failures[0].detail
    assert report.failures[0].remedy == "if the difference is acceptable, set numerics.max_rel_error"


def test_numerics_compare_at_the_models_own_batch_when_it_is_fixed(trained, compare: Compare) -> None:
    proto = trained.proto()
    set_axis([*proto.graph.input, *proto.graph.output], 0, 5)  # whether it may be is the structure gate's question
    report = compare(proto)
    assert failed(report) == set()
    assert {row.batch for row in report.facts.comparisons} == {5}


def test_numerics_fail_with_missing_values_when_no_batch_can_run(trained, compare: Compare) -> None:
    proto = trained.proto()
    set_axis([*proto.graph.input], 2, 31)
    report = compare(proto)
    assert failed(report) == {"failed_batches", "max_rel_error"}
    assert report.failures[0].value == 8  # real and random, at 1, 2, 3 and 7
    assert report.failures[0].detail.startswith("real inputs, batch 1: ONNX Runtime fails on inputs of shape")
    values = {check.name.removeprefix("numerics."): check.value for check in report.checks}
    assert values["max_rel_error"] is None
    assert report.facts.worst_sample is None


def test_numerics_fail_on_batches_when_samples_are_averaged_away(trained, compare: Compare) -> None:
    proto = trained.proto()
    proto.graph.node[-1].output[0] = "inner"
    onnx_text.extend(proto, "<int64[1] axes = {0}> { logits = ReduceMean<keepdims = 1>(inner, axes) }")
    report = compare(proto)
    assert failed(report) == {"failed_batches"}
    assert report.failures[0].detail.startswith("real inputs, batch 2: output 'logits' has shape (1, 10) for 2 samples")


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_numerics_fail_when_outputs_are_not_finite(trained, compare: Compare, value: float) -> None:
    proto = trained.proto()
    change_weights(proto, "Gemm", 0, at((2, slice(None)), lambda _: value))
    report = compare(proto)
    assert "max_rel_error" in failed(report)
    values = [check.value for check in report.failures if check.name.endswith("_error")]
    assert not any(math.isfinite(v) for v in values)
    assert report.facts.worst_sample is not None


def test_numerics_fail_when_the_limit_is_tighter_than_rounding(trained, compare: Compare) -> None:
    report = compare(trained.proto(), max_rel_error=0)
    assert "max_rel_error" in failed(report)
    assert all(0 < check.value < 1e-5 for check in report.failures)
    assert "of its range; which is rounding. Fix: no float32 file is closer" in str(report.failures[0])


def test_numerics_name_the_worst_sample_when_one_output_is_wrong(trained, compare: Compare) -> None:
    proto = trained.proto()
    change_weights(proto, "Gemm", 0, at((2, slice(None)), lambda w: -w))
    report = compare(proto)
    assert "min_top1_agreement" in failed(report)
    assert f"sample {report.facts.worst_sample}" in report.failures[0].detail
    assert "worst output 'logits'" in report.failures[0].detail


RARE = "m (float[n,2] x) => (float[n,2] y) <float low = {-9}, float high = {9}> { y = Clip(x, low, high) }"
"""Its outputs are its inputs, but for those beyond 9."""


@pytest.mark.parametrize(("beyond", "passes"), [([], True), ([700], True), ([700, 801], False)])
def test_numerics_compare_every_test_sample(keep_model: Keep, beyond: list[int], passes: bool) -> None:
    values = np.random.default_rng(0).normal(size=(1000, 2)).astype(np.float32)
    values[beyond, 1] = 11
    out, model = keep_model(onnx_text.model(RARE))
    few = {"y": values[:64]}
    Golden({"real": GoldenCase({"x": few["y"]}, few)}, {"y": values}).save(out.folder / "golden.npz")
    test = out.store_file(ArraySplit({"x": values}).save(out.folder, "test"))
    golden = out.store_file(out.folder / "golden.npz")
    report = numerics(NumericsConfig(), out, model=model, golden=golden, test=test)
    assert (not report.failures) is passes
    assert passes or "2 of 1000 test samples differ in 'y', such as [700, 801]" in report.failures[0].detail


def test_numerics_fail_when_the_model_does_not_run_on_a_test_sample(keep_model: Keep) -> None:
    ids = np.arange(200)[:, None] % 10
    text = "m (int64[n,1] x) => (float[n,1,2] y) <float[9,2] table> { y = Gather(table, x) }"
    out, model = keep_model(onnx_text.model(text, {"table": np.ones((9, 2))}))
    values = np.ones((200, 1, 2), np.float32)
    Golden({"real": GoldenCase({"x": ids[:9]}, {"y": values[:9]})}, {"y": values}).save(out.folder / "golden.npz")
    test = out.store_file(ArraySplit({"x": ids}).save(out.folder, "test"))
    golden = out.store_file(out.folder / "golden.npz")
    (failure,) = numerics(NumericsConfig(), out, model=model, golden=golden, test=test).failures
    assert (failure.name, failure.value) == ("numerics.different_samples", None)
    assert "out of data bounds" in failure.detail


@pytest.mark.parametrize("batch", [0, -1])
def test_numerics_refuse_when_a_batch_size_is_not_positive(batch: int) -> None:
    with pytest.raises(ValueError, match="greater than 0"):
        NumericsConfig(batch_sizes=(batch,))


OFFSET = "m (float[n,4] x) => (float[n,4] y) <float[4] error> { y = Add(x, error) }"
"""An output that differs from the expected one, which is its input, by `error`."""


def compared(
    keep_model: Keep, error: float, values: np.ndarray, task: Task = "arrays", **limits: float
) -> Report[NumericsFacts]:
    model: onnx.ModelProto = onnx_text.model(OFFSET, {"error": np.array([error, 0, 0, 0])})
    signature_from_graph(model).replace(task=task).write(model)
    out, kept = keep_model(model)
    case = {"y": values.astype(np.float32)}
    Golden({"real": GoldenCase({"x": case["y"]}, case)}, {}).save(out.folder / "golden.npz")
    golden = out.store_file(out.folder / "golden.npz")
    return numerics(NumericsConfig(**limits), out, model=kept, golden=golden)


def test_error_within_the_limit_of_a_large_range_passes(keep_model: Keep) -> None:
    assert not compared(keep_model, 0.0043, np.linspace(-62, -1.4, 40).reshape(10, 4)).failures


def test_small_error_of_an_output_with_a_small_range_fails(keep_model: Keep) -> None:
    (failure,) = compared(keep_model, 5e-5, np.linspace(0, 0.01, 40).reshape(10, 4)).failures
    assert (failure.name, failure.value) == ("numerics.max_rel_error", pytest.approx(5e-3, rel=1e-3))
    assert "'y' changes by up to 5e-05" in failure.detail


def test_output_that_hardly_varies_around_a_large_value_may_be_rounded(keep_model: Keep) -> None:
    assert not compared(keep_model, 1e-4, 300 + np.linspace(0, 1e-3, 40).reshape(10, 4)).failures


@pytest.mark.parametrize(
    ("dtype", "error", "passes"), [(np.float16, 1e-3, True), (np.float16, 1e-2, False), (np.float32, 1e-3, False)]
)
def test_output_of_half_precision_may_differ_by_a_few_of_its_steps(dtype: type, error: float, passes: bool) -> None:
    expected = np.linspace(-1, 1, 40).astype(dtype)
    assert output_difference("real", 1, "y", expected + dtype(error), expected).within(Tolerances()) == passes


@pytest.mark.parametrize(
    ("task", "failures"), [("regression", []), ("arrays", []), ("classification", ["numerics.min_top1_agreement"])]
)
def test_largest_of_several_values_counts_for_classifiers_alone(
    keep_model: Keep, task: Task, failures: list[str]
) -> None:
    values = np.tile([1.0, 1.00001, 0.0, 5.0], (8, 1))
    values[:, 3] = np.where(np.arange(8) < 4, 5.0, 0.0)  # in the other samples, the first two values are nearly tied
    report = compared(keep_model, 1e-4, values, task)
    assert [failure.name for failure in report.failures] == failures


def test_remedy_speaks_of_a_node_only_where_one_is_named(keep_model: Keep) -> None:
    (failure,) = compared(keep_model, 1.0, np.linspace(0, 1, 40).reshape(10, 4)).failures
    assert "node" not in failure.remedy


NETWORK = """m (float[n,16] x) => (float[n,4] y) <float[16,4] a, float[16,4] b, float[4] offset, float scale> {
    one = MatMul(x, a)  other = MatMul(x, b)  rest = Sub(one, other)  large = Mul(rest, scale)  y = Add(large, offset)
}"""
"""Two products of which only the difference counts: the nearer they are, the more their rounding is amplified."""


def amplified(keep: Keep, nearness: float, error: float, **limits: float) -> Report[NumericsFacts]:
    """Compare a network whose output, with a range of about 1, is off by `error`, with what it should compute."""
    generator = np.random.default_rng(0)
    a, step = generator.normal(size=(16, 4)).astype(np.float32), generator.normal(size=(16, 4)).astype(np.float32)
    b: NDArray[np.float32] = (a - nearness * step).astype(np.float32)
    inputs = generator.normal(size=(32, 16)).astype(np.float32)
    offset = np.array([error, 0, 0, 0], np.float32)
    weights = {"a": a, "b": b, "offset": offset, "scale": np.float32(0.05 / nearness)}
    out, model = keep(onnx_text.model(NETWORK, weights))
    wide = inputs.astype(np.float64)
    exact = (wide @ a.astype(np.float64) - wide @ b.astype(np.float64)) * (0.05 / nearness)
    Golden({"real": GoldenCase({"x": inputs}, {"y": exact.astype(np.float32)})}, {}).save(out.folder / "golden.npz")
    golden = out.store_file(out.folder / "golden.npz")
    return numerics(NumericsConfig(**limits), out, model=model, golden=golden)


def test_error_that_the_network_makes_of_rounding_passes_and_the_limit_says_so(keep_model: Keep) -> None:
    report = amplified(keep_model, 3e-4, 0)
    (check,) = [check for check in report.checks if check.name == "numerics.max_rel_error"]
    assert check.passed
    assert 1e-4 < check.value < check.limit <= 1e-3
    assert "the last digits of the weights alone change 'y' by" in check.detail


def test_rounding_is_what_changes_most_in_several_draws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generator, path = np.random.default_rng(0), tmp_path / "model.onnx"
    a, step = generator.normal(size=(2, 16, 4))
    onnx.save(onnx_text.model(NETWORK, {"a": a, "b": a - 3e-4 * step, "offset": np.zeros(4), "scale": 100.0}), path)
    case, changes = GoldenCase({"x": generator.normal(size=(32, 16)).astype(np.float32)}, {}), list[float]()
    for draws in (1, 3):
        monkeypatch.setattr(sys.modules[amplified_rounding.__module__], "DRAWS", draws)
        changes.append(amplified_rounding(path, {"real": case}, Tolerances())["y"])
    assert 1e-4 < changes[0] < changes[1]


@pytest.mark.parametrize(
    ("nearness", "error", "limits"),
    [
        (1.0, 2e-4, {}),  # a network that amplifies nothing
        (3e-4, 3e-3, {}),  # one that does, and an error that its rounding does not explain
        (1e-5, 0, {}),  # one whose rounding alone changes more than ten times the limit
        (3e-4, 0, {"max_rel_error": 1e-12}),  # a limit that a user has set is not forgotten
    ],
)
def test_error_beyond_what_rounding_explains_is_refused(
    keep_model: Keep, nearness: float, error: float, limits: dict[str, float]
) -> None:
    (failure,) = amplified(keep_model, nearness, error, **limits).failures
    assert failure.name == "numerics.max_rel_error"
