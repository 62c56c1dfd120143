"""Limits are relative to each output's own range, and only the scores of a classifier have a best class."""

from collections.abc import Callable

import numpy as np
import onnx
import onnx_text
import pytest

from gauntlet.core.artifact import Artifact
from gauntlet.core.report import Report
from gauntlet.core.signature import Task, signature_from_graph
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.golden import Golden, GoldenCase
from gauntlet.metrics.output_comparison import Tolerances, output_difference
from tasks.numerics import NumericsConfig, NumericsFacts, numerics

Keep = Callable[..., tuple[Workspace, Artifact]]
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
