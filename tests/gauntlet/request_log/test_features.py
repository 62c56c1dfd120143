"""Which samples have outputs that are not finite although their inputs are."""

import numpy as np

from gauntlet.core.ragged import joined_samples
from gauntlet.core.signature import Signature
from gauntlet.request_log.features import are_broken, output_features

NAN = np.array([[0.0], [np.nan], [np.inf]])


def test_output_that_is_not_finite_is_broken_where_the_input_is_finite() -> None:
    inputs, statistics = {"x": np.array([[0.0], [1.0], [np.nan]])}, np.array([[np.nan], [1.0], [1.0]])
    assert are_broken({"y": NAN}, inputs, None, ["y"], 3).tolist() == [0, 1, 0]
    assert are_broken({"y": NAN}, inputs, statistics, ["y"], 3).tolist() == [0, 1, 1]
    assert are_broken({"y": NAN}, None, None, ["y"], 3).tolist() == [0, 1, 1]


def test_outputs_that_need_not_be_finite_are_left_out() -> None:
    assert are_broken({"y": NAN, "label": np.arange(3)}, None, None, ["label", "absent"], 3).tolist() == [0, 0, 0]


def test_features_of_a_list_are_those_of_its_values_and_not_of_the_padding() -> None:
    lists = joined_samples([np.array([[2.0, 4.0]]), np.zeros((1, 0)), np.array([[5.0, 5.0, 5.0]])])
    signature = Signature(task="arrays", inputs=(), outputs=(), layout="none", primary_output="y")
    found = output_features({"y": lists}, signature)
    assert np.array_equal(found, [[3, 1], [np.nan, np.nan], [5, 0]], equal_nan=True)
