"""Limits are relative to each output's own range, and follow what rounding does in this network: no further."""

from collections.abc import Callable

import numpy as np
import onnx
import onnx_text
import pytest
from numpy.typing import NDArray

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
    out, model = keep(
        onnx_text.model(NETWORK, {"a": a, "b": b, "offset": offset, "scale": np.float32(0.05 / nearness)})
    )
    wide = inputs.astype(np.float64)
    exact = (wide @ a.astype(np.float64) - wide @ b.astype(np.float64)) * (0.05 / nearness)
    case = GoldenCase({"x": inputs}, {"y": exact.astype(np.float32)})
    Golden({"real": case}, {}).save(out.folder / "golden.npz")
    golden = out.store_file(out.folder / "golden.npz")
    return numerics(NumericsConfig(**limits), out, model=model, golden=golden)


def test_error_that_the_network_makes_of_rounding_passes_and_the_limit_says_so(keep_model: Keep) -> None:
    report = amplified(keep_model, 3e-4, 0)
    (check,) = [check for check in report.checks if check.name == "numerics.max_rel_error"]
    assert check.passed
    assert 1e-4 < check.value < check.limit <= 1e-3
    assert "the last digits of the weights alone change 'y' by" in check.detail


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
