"""The quick measurement of a pass says no more than its rounds can."""

from pathlib import Path

import numpy as np
import onnx
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from tasks.optimize.latency_check import _outer, speed_ratio


@given(st.integers(6, 400))
def test_interval_leaves_out_as_many_rounds_as_the_sign_test_allows(rounds: int) -> None:
    outside = _outer(rounds)
    assert binom.cdf(outside, rounds, 0.5) <= 0.025 < binom.cdf(outside + 1, rounds, 0.5)


def test_interval_holds_its_median_and_one_model_has_its_own_speed(subject, tmp_path: Path) -> None:
    model = subject.out.path(subject.model)
    inputs = {"x": np.zeros((4, 3, 16, 16), np.float32)}
    onnx.save(onnx.load(model), tmp_path / "same.onnx")
    speed, low, high = speed_ratio(model, tmp_path / "same.onnx", inputs)
    assert 0 < low <= speed <= high
