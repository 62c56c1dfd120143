"""The gate on the numbers, on models that compute something else."""

import math
from collections.abc import Callable

import numpy as np
import onnx
import onnx_text
import pytest
from onnx import numpy_helper

from gauntlet.core.artifact import Artifact
from gauntlet.core.report import Report
from gauntlet.core.workspace import Workspace
from tasks.numerics import NumericsConfig, NumericsFacts, numerics

Compare = Callable[..., Report[NumericsFacts]]


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


def test_numerics_name_the_worst_sample_when_one_output_is_wrong(trained, compare: Compare) -> None:
    proto = trained.proto()
    change_weights(proto, "Gemm", 0, at((2, slice(None)), lambda w: -w))
    report = compare(proto)
    assert "min_top1_agreement" in failed(report)
    assert f"sample {report.facts.worst_sample}" in report.failures[0].detail
    assert "worst output 'logits'" in report.failures[0].detail


@pytest.mark.parametrize("batch", [0, -1])
def test_numerics_refuse_when_a_batch_size_is_not_positive(batch: int) -> None:
    with pytest.raises(ValueError, match="greater than 0"):
        NumericsConfig(batch_sizes=(batch,))
