"""The cost of a call, and the batch size that follows from the race's curve."""

import pytest

from serving.cost_model import CostModel, best_batch, measured_seconds


@pytest.mark.parametrize(
    ("milliseconds", "deadline_ms", "batch"),
    [
        ({1: 10, 8: 40, 32: 160}, 1000, 32),  # equal rows per second: the larger
        ({1: 10, 8: 40, 32: 200}, 1000, 8),  # the largest batch is slower a row
        ({1: 10, 8: 40, 32: 120}, 100, 8),  # two calls of the best batch exceed the deadline
        ({1: 10, 8: 100}, 1000, 1),  # batches do not pay
        ({1: 600, 8: 4800}, 1000, 1),  # none fits
    ],
)
def test_batch_has_most_rows_per_second_within_the_deadline(
    milliseconds: dict[int, float], deadline_ms: float, batch: int
) -> None:
    assert best_batch({rows: ms / 1000 for rows, ms in milliseconds.items()}, deadline_ms / 1000) == batch


def test_cost_is_interpolated_and_scaled_to_this_machine() -> None:
    cost = CostModel({1: 1.0, 5: 3.0}, max_rows=5)
    assert [cost.call(rows) for rows in (1, 3, 5)] == [1, 2, 3]
    cost.calibrate(5, 6.0)
    assert [cost.call(rows) for rows in (1, 3, 5)] == [2, 4, 6]
    assert cost.wait(13) == 6 + 6 + 4


def test_prediction_follows_what_is_observed_with_a_margin_for_its_spread() -> None:
    cost = CostModel({1: 1.0, 4: 4.0}, max_rows=4)
    for seconds in (4.0, 8.0) * 40:
        cost.observe(4, seconds)
    assert cost.call(4) == pytest.approx(6, rel=0.15)
    assert cost.wait(4) >= 8  # what half of the calls take


def test_curve_is_measured_where_the_bundle_has_none() -> None:
    asked: list[int] = []
    seconds = measured_seconds(asked.append, budget_s=10)
    assert asked == [*seconds] == [1, 2, 4, 8, 16, 32]
