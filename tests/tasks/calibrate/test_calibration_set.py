"""The checks of the calibration set: finite, enough, of all classes, and none of the test images."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_text
import pytest
from calibrated_recipes import COUNT, QUICK, Answer, images, network

from gauntlet.calibration.ranges import Ranges
from gauntlet.core.report import Report
from gauntlet.core.signature import signature_from_graph
from gauntlet.datasets import read_split
from tasks.calibrate.calibration_set import RangeChange, changes, convergence_check


def check(report: Report[Any], name: str) -> Any:
    return next(c for c in report.checks if c.name == f"calibrate.{name}")


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_gate_fails_when_an_activation_is_no_number(answer: Callable[..., Answer], tmp_path: Path, bad: float) -> None:
    array = images(40)
    array[17, 0, 5, 5] = bad
    _, report = answer(network(tmp_path / "m.onnx"), array, *QUICK)
    failure = check(report, "non_finite_tensors")
    assert [c.name for c in report.failures] == [failure.name]
    assert failure.value >= 5
    assert failure.detail.startswith("NaN or infinity in x, c1, r1, ")


def test_images_are_enough_when_the_second_half_adds_nothing(answer: Callable[..., Answer], tmp_path: Path) -> None:
    _, report = answer(network(tmp_path / "m.onnx"), np.tile(images(8), (12, 1, 1, 1)), *QUICK)
    passed = check(report, "max_range_change")
    assert passed.passed
    assert passed.detail.startswith("96 samples are enough: from 48 of them, ")
    assert {(c.method, c.images) for c in report.facts.changes} == {(m.name, n) for m in QUICK for n in (48,)}


def test_ranges_have_not_converged_when_the_last_image_is_another(
    answer: Callable[..., Answer], tmp_path: Path
) -> None:
    array = images()
    array[-1] *= 20
    _, report = answer(network(tmp_path / "m.onnx"), array)
    warning = check(report, "max_range_change")
    assert not warning.passed
    assert warning.detail.startswith("not converged at 96 samples: from 48 of them, the typical minmax range ")
    report.raise_if_blocked()  # it warns
    _, strict = answer(network(tmp_path / "m.onnx"), array, strict=True)
    assert [c.name for c in strict.failures] == ["calibrate.max_range_change"]


def test_ranges_have_not_converged_when_there_is_one_image(answer: Callable[..., Answer], tmp_path: Path) -> None:
    _, report = answer(network(tmp_path / "m.onnx"), images(1), *QUICK)
    unknown = check(report, "max_range_change")
    assert (unknown.passed, unknown.value) == (False, None)
    assert unknown.detail == "not converged at 1 samples: too few to compare half of them with all"


@pytest.mark.parametrize(("method", "proposed"), [("minmax", True), ("percentile", False)])
def test_method_that_clips_outliers_is_proposed_to_one_that_does_not(method: str, proposed: bool) -> None:
    change = RangeChange(method=method, images=48, change=0.5, tensor="r1", typical=0.2)
    remedy = convergence_check((change,), 96, 96, "warning").remedy
    assert ("use a method that clips outliers" in remedy) == proposed


@pytest.mark.parametrize(("at_hand", "way"), [(300, "raise calibrate.images"), (96, "bring more samples")])
def test_more_samples_are_asked_for_only_where_all_are_used(at_hand: int, way: str) -> None:
    change = RangeChange(method="percentile", images=48, change=0.5, tensor="r1", typical=0.2)
    assert convergence_check((change,), 96, at_hand, "warning").remedy.startswith(way)


def test_one_range_that_still_grows_is_no_warning() -> None:
    def after(widest: float) -> Ranges:
        return Ranges(images=1, methods={"minmax": {"a": (0.0, 1.0), "b": (0.0, 1.0), "c": (0.0, widest)}})

    check = convergence_check(changes({48: after(1.0), 96: after(2.0)}), 96, 96, "warning")
    assert check.passed
    assert "that of 'c' by 50.0%" in check.detail


def test_convergence_is_no_question_when_there_is_nothing_to_quantize(
    answer: Callable[..., Answer], tmp_path: Path
) -> None:
    proto = onnx_text.model("exp (float[n,3,12,12] x) => (float[n,3,12,12] y) { y = Exp(x) }", opset=17)
    signature_from_graph(proto).write(proto)
    onnx.save(proto, tmp_path / "exp.onnx")
    _, report = answer(tmp_path / "exp.onnx", images(8), *QUICK, strict=True)
    assert report.facts.tensors == 0
    assert "calibrate.max_range_change" not in {c.name for c in report.checks}
    report.raise_if_blocked()


def test_coverage_fails_when_a_class_has_no_image_among_those_used(
    answer: Callable[..., Answer], tmp_path: Path
) -> None:
    labels = np.repeat([0, 1, 2, 3], COUNT // 4)
    _, whole = answer(network(tmp_path / "m.onnx"), images(), labels=labels)
    assert check(whole, "missing_classes").passed
    _, half = answer(network(tmp_path / "m.onnx"), images(), labels=labels, images=48, strict=True)
    assert "calibrate.missing_classes" in {c.name for c in half.failures}
    assert check(half, "missing_classes").detail == "no calibration sample of c, d"


def test_overlap_fails_when_a_calibration_image_is_in_the_test_set(
    answer: Callable[..., Answer], tmp_path: Path
) -> None:
    test = np.concatenate([images(5, seed=9), images()[70:71]])
    _, report = answer(network(tmp_path / "m.onnx"), images(), test=test, strict=True)
    assert "calibrate.test_overlap" in {c.name for c in report.failures}
    assert check(report, "test_overlap").detail == "calibration[70] is test[5]"
    _, few = answer(network(tmp_path / "m.onnx"), images(), test=test, images=64)  # image 70 is not used
    assert check(few, "test_overlap").passed


def test_overlap_is_found_in_the_splits_that_the_data_stage_keeps(trained) -> None:
    from gauntlet.datasets.audit import shared_samples

    calibration, test = (read_split(trained.store.path(trained.artifacts[n])) for n in ("calibration", "test"))
    assert shared_samples(calibration, test) == []
    assert shared_samples(test, test) == [(n, n) for n in range(len(test))]
