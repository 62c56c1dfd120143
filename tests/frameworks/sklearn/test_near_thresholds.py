"""Samples on a tree's threshold are told from samples that are wrong."""

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnxruntime import InferenceSession

from gauntlet.core.report import Report
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.golden import Golden, GoldenCase
from gauntlet.datasets.splits import ArraySplit
from tasks.numerics import NumericsConfig, NumericsFacts, numerics

VALUES = np.arange(3, 83, 2)
THRESHOLD = 44
"""Halfway between two values of the training data."""


@pytest.fixture
def compared(workspace: Callable[..., Workspace]) -> Callable[..., Report[NumericsFacts]]:
    """Return the report on a scaler with a tree whose source gives another class for these samples."""
    from skl2onnx import to_onnx
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    from sklearn.tree import DecisionTreeClassifier

    def compare(on_threshold: int, wrong: int) -> Report[NumericsFacts]:
        data = np.tile(VALUES[:, None], (5, 1)).astype(np.float32)
        tree = make_pipeline(StandardScaler(), DecisionTreeClassifier()).fit(data, (data[:, 0] > THRESHOLD).astype(int))
        out = workspace()
        onnx.save(to_onnx(tree, data[:1], options={"zipmap": False}), out.folder / "m.onnx")
        data[:on_threshold] = THRESHOLD
        label, outputs = InferenceSession(out.folder / "m.onnx").run(None, {"X": data})
        changed = on_threshold + wrong
        named = {"label": label, "probabilities": outputs}
        for each in named.values():
            each[:changed] = 1 - each[:changed]
        few = {name: array[-32:] for name, array in named.items()}
        Golden({"real": GoldenCase({"X": data[-32:]}, few)}, named).save(out.folder / "golden.npz")
        test = out.store_file(ArraySplit({"X": data}).save(out.folder, "test"))
        golden, model = (out.store_file(out.folder / name) for name in ("golden.npz", "m.onnx"))
        return numerics(NumericsConfig(), out, model=model, golden=golden, test=test)

    return compare


def test_samples_on_a_threshold_may_have_either_side(compared: Callable[..., Report[NumericsFacts]]) -> None:
    report = compared(on_threshold=8, wrong=0)
    assert not report.failures
    assert any("rounding alone decides those of 8 others" in check.detail for check in report.checks)


@pytest.mark.parametrize(("on_threshold", "wrong", "counted"), [(8, 1, 1), (0, 1, 1), (21, 0, 21)])
def test_other_samples_and_too_many_on_a_threshold_are_refused(
    compared: Callable[..., Report[NumericsFacts]], on_threshold: int, wrong: int, counted: int
) -> None:
    (failure,) = compared(on_threshold, wrong).failures
    assert failure.name == "numerics.different_samples"
    assert f"{counted} of 200 test samples differ" in failure.detail
