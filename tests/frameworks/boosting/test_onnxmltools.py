"""Boosted trees to ONNX: the same predictions, with missing values too, and a refusal where the exporter is wrong."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import onnx
import pytest
import xgboost
from sklearn.datasets import load_digits

from frameworks.boosting.onnxmltools import OnnxMlTools
from frameworks.boosting.training import BoostingModel, BoostingTraining
from frameworks.boosting.trees import LightGbm, load
from gauntlet.core.errors import StageError
from gauntlet.core.report import Report
from gauntlet.core.signature import Signature, TensorSpec
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.splits import ArraySplit
from gauntlet.runtime.session import open_session
from tasks.export import export
from tasks.numerics import NumericsConfig, numerics
from tasks.structure import StructureConfig, structure
from tasks.train.facts import TrainFacts

Make = Callable[..., Workspace]
FEATURES = 64
EXACT = {"max_rel_error": 1e-5}
LIBRARIES = ("lightgbm", "xgboost")


def digits(classes: int, missing: float) -> tuple[np.ndarray, np.ndarray]:
    """Digits as vectors; a share of the values is missing."""
    pixels, labels = load_digits(return_X_y=True)
    points = pixels[labels < classes].astype(np.float32) / 16
    points[np.random.default_rng(0).random(points.shape) < missing] = np.nan
    return points, labels[labels < classes].astype(np.int64)


def splits_of(points: np.ndarray, labels: np.ndarray) -> dict[str, ArraySplit]:
    parts = {"train": slice(0, None, 3), "validation": slice(1, None, 3), "test": slice(2, None, 3)}
    return {name: ArraySplit({"pixels": points[part]}, labels[part]) for name, part in parts.items()}


def signature_of(classes: int, features: int = FEATURES) -> Signature:
    inputs = (TensorSpec(name="pixels", dtype="float32", shape=("batch", features)),)
    return Signature(inputs=inputs, outputs=(), layout="none", labels=tuple(str(digit) for digit in range(classes)))


@pytest.fixture
def convert(workspace: Make) -> Callable[..., onnx.ModelProto]:
    """Return a function that exports a trained model; the gates of the file and of the numbers must pass."""

    def run(report: Report[TrainFacts], opset: int = 18) -> Path:
        out, signature = workspace(), report.facts.signature
        model, golden = report.artifacts["model"], report.artifacts["golden"]
        exported = export(OnnxMlTools(opset=opset), out, model=model, signature=signature, golden=golden)
        path = exported.artifacts["model"]
        structure(StructureConfig(), workspace(), model=path).raise_if_blocked()
        config = NumericsConfig.model_validate(EXACT)
        numerics(config, workspace(), model=path, golden=golden).raise_if_blocked()
        return out.path(path)

    return run


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(("classes", "missing"), [(10, 0.0), (10, 0.3), (2, 0.3)])
def test_exported_trees_predict_as_the_library_does(
    convert, workspace: Make, library: str, classes: int, missing: float
) -> None:
    points, labels = digits(classes, missing)
    config = BoostingTraining(library=library, rounds=12, max_leaves=15, learning_rate=0.3)
    report = config.fit(splits_of(points, labels), signature_of(classes), workspace())
    path, out = convert(report), workspace()
    source = load(out.path(report.artifacts["model"]))
    # Other values than those of the training, also missing where none was.
    others = points + np.random.default_rng(1).normal(0, 0.1, points.shape).astype(np.float32)
    others[::5, ::3] = np.nan
    for inputs in (points, others):
        expected = source.predict(inputs)
        label, probabilities = open_session(path).run(["label", "probabilities"], {"pixels": inputs})
        assert np.array_equal(label, expected["label"])
        assert np.abs(probabilities - expected["probabilities"]).max() < 1e-5
    assert np.mean(source.predict(points)["label"] == labels) > 0.8
    again = config.fit(splits_of(points, labels), signature_of(classes), workspace())
    assert again.artifacts == report.artifacts


def test_thresholds_between_neighboring_float32_values_split_as_in_lightgbm(convert, workspace: Make) -> None:
    numbers = np.random.default_rng(0).integers(0, 40, (1200, 3))
    points, labels = np.float32(1) + numbers.astype(np.float32) * np.float32(2**-23), numbers[:, 0] // 3 % 3
    config = BoostingTraining(rounds=5, max_leaves=15)
    report = config.fit(splits_of(points, labels.astype(np.int64)), signature_of(3, 3), workspace())
    source = load(workspace().path(report.artifacts["model"]))
    _, probabilities = open_session(convert(report)).run(None, {"pixels": points})
    assert np.abs(probabilities - source.predict(points)["probabilities"]).max() < 1e-5
    # Not so without the exporter's preparation: the nearest float32 value of a threshold is on its other side.
    assert isinstance(source, LightGbm)
    rounded = [_as_float32(model.text) for model in (source, source.with_float32_thresholds())]
    errors = [np.abs(m.predict(points)["probabilities"] - source.predict(points)["probabilities"]) for m in rounded]
    assert errors[0].max() > 0.1
    assert errors[1].max() < 1e-6


def _as_float32(text: str) -> LightGbm:
    """A model with each threshold rounded to the nearest float32 value, as exporters do."""
    lines = [line for line in text.splitlines() if not line.startswith("tree_sizes=")]
    for index, line in enumerate(lines):
        if line.startswith("threshold="):
            values = np.array(line.removeprefix("threshold=").split(), np.float64).astype(np.float32)
            lines[index] = "threshold=" + " ".join(repr(float(value)) for value in values)
    return LightGbm(lightgbm.Booster(model_str="\n".join(lines) + "\n"))


def test_categories_split_as_in_lightgbm_when_the_model_was_brought(convert, workspace: Make, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    points = rng.integers(0, 12, (600, 2)).astype(np.float32)
    labels = (points[:, 0] * 7 % 5 > 2).astype(np.int64)
    settings = {"objective": "binary", "verbosity": -1, "min_data_per_group": 1, "cat_smooth": 0}
    lightgbm.train(settings, lightgbm.Dataset(points, labels, categorical_feature=[0]), 5).save_model(
        tmp_path / "m.txt"
    )
    unknown = points.copy()
    unknown[::7, 0], unknown[1::7, 0], unknown[2::7, 0] = np.nan, 99, -3
    report = BoostingModel(model=tmp_path / "m.txt").fit(splits_of(unknown, labels), signature_of(2, 2), workspace())
    assert convert(report).exists()


def test_rounds_after_the_best_one_do_not_count_when_a_model_was_brought(
    convert, workspace: Make, tmp_path: Path
) -> None:
    points, labels = digits(3, 0.2)
    labels[::6] = (labels[::6] + 1) % 3  # so that later rounds learn noise
    data = [
        xgboost.DMatrix(points[part::2], labels[part::2], feature_names=[f"pixel {i}" for i in range(64)])
        for part in (0, 1)
    ]
    booster = xgboost.train(
        {"objective": "multi:softprob", "num_class": 3, "eta": 1.0},
        data[0],
        60,
        evals=[(data[1], "validation")],
        early_stopping_rounds=5,
        verbose_eval=False,
    )
    booster.save_model(tmp_path / "m.ubj")
    assert booster.best_iteration + 1 < booster.num_boosted_rounds()
    report = BoostingModel(model=tmp_path / "m.ubj").fit(splits_of(points, labels), signature_of(3), workspace())
    _, probabilities = open_session(convert(report)).run(None, {"pixels": points})
    data = xgboost.DMatrix(points, feature_names=[f"pixel {i}" for i in range(64)])
    best = booster.predict(data, iteration_range=(0, booster.best_iteration + 1))
    assert np.abs(probabilities - best).max() < 1e-5
    assert np.abs(probabilities - booster.predict(data, iteration_range=(0, booster.num_boosted_rounds()))).max() > 1e-4


@pytest.mark.parametrize("name", ["m.txt", "m.json"])
def test_regressor_s_values_are_those_of_the_library(convert, workspace: Make, tmp_path: Path, name: str) -> None:
    points, labels = digits(10, 0.3)
    if name == "m.txt":
        settings = {"objective": "huber", "verbosity": -1}
        lightgbm.train(settings, lightgbm.Dataset(points, labels, params={"verbosity": -1}), 5).save_model(
            tmp_path / name
        )
    else:
        xgboost.train({"verbosity": 0}, xgboost.DMatrix(points, labels), 5).save_model(tmp_path / name)
    signature, model = signature_of(0).replace(task="regression"), BoostingModel(model=tmp_path / name)
    report = model.fit(splits_of(points, labels.astype(float)), signature, workspace())
    session = open_session(convert(report))
    assert [output.name for output in session.get_outputs()] == ["variable"]
    np.testing.assert_allclose(
        session.run(None, {"pixels": points})[0],
        load(tmp_path / name).predict(points)["variable"],
        rtol=1e-5,
        atol=1e-5,
    )
    with pytest.raises(StageError, match="a regressor, and the data's labels are classes"):
        model.fit(splits_of(points, labels), signature_of(10), workspace())


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"linear_tree": True}, "linear models in its leaves"),
        ({"sigmoid": 2}, r"a sigmoid of another slope \(sigmoid: 2\)"),
        ({"zero_as_missing": True}, "zeros that are missing values"),
        ({"boosting": "rf", "bagging_freq": 1, "bagging_fraction": 0.5}, "averaged trees"),
    ],
)
def test_lightgbm_model_is_refused_when_the_exporter_would_write_another_function(
    workspace: Make, tmp_path: Path, settings: dict[str, Any], what: str
) -> None:
    points, labels = digits(2, 0.0)
    wanted = {"objective": "binary", "verbosity": -1} | settings
    lightgbm.train(wanted, lightgbm.Dataset(points, labels, params={"verbosity": -1}), 5).save_model(tmp_path / "m.txt")
    refuse(workspace, tmp_path / "m.txt", what)


@pytest.mark.parametrize(
    ("settings", "first", "what"),
    [({"booster": "dart", "rate_drop": 0.5}, "q", "the booster dart"), ({}, "c", "splits of categories")],
)
def test_xgboost_model_is_refused_when_the_exporter_would_write_another_function(
    workspace: Make, tmp_path: Path, settings: dict[str, Any], first: str, what: str
) -> None:
    points, labels = digits(2, 0.0)
    points[:, 0] = np.arange(len(points)) % 8  # a number, or a category, and all that the labels depend on
    labels = (points[:, 0] * 3 % 5 > 1).astype(np.int64)
    kinds = [first, *"q" * (FEATURES - 1)]
    data = xgboost.DMatrix(points, labels, feature_types=kinds, enable_categorical=True)
    xgboost.train({"objective": "binary:logistic", "verbosity": 0} | settings, data, 5).save_model(tmp_path / "m.json")
    refuse(workspace, tmp_path / "m.json", what)


def test_xgboost_forest_of_several_classes_is_refused(workspace: Make, tmp_path: Path) -> None:
    points, labels = digits(3, 0.0)
    settings = {"objective": "multi:softprob", "num_class": 3, "num_parallel_tree": 2}
    xgboost.train(settings, xgboost.DMatrix(points, labels), 2).save_model(tmp_path / "m.json")
    refuse(workspace, tmp_path / "m.json", r"several trees for each class in a round \(num_parallel_tree: 2\)", 3)


def refuse(workspace: Make, file: Path, what: str, classes: int = 2) -> None:
    points, labels = digits(classes, 0.0)
    out = workspace()
    report = BoostingModel(model=file).fit(splits_of(points, labels), signature_of(classes), out)
    model, golden = report.artifacts["model"], report.artifacts["golden"]
    with pytest.raises(StageError, match=rf"{what}.*, which onnxmltools converts to another function. Fix: "):
        export(OnnxMlTools(), out, model=model, signature=report.facts.signature, golden=golden)
