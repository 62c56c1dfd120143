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

pytestmark = pytest.mark.slow
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
    rounded = [_as_float32(model.text) for model in (source, source.plain())]
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
    points = np.random.default_rng(0).integers(0, 12, (600, 2)).astype(np.float32)
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
    assert report.facts.signature.columns == tuple(f"pixel {i}" for i in range(64))
    _, probabilities = open_session(convert(report)).run(None, {"pixels": points})
    data = xgboost.DMatrix(points, feature_names=[f"pixel {i}" for i in range(64)])
    best = booster.predict(data, iteration_range=(0, booster.best_iteration + 1))
    assert np.abs(probabilities - best).max() < 1e-5
    assert np.abs(probabilities - booster.predict(data, iteration_range=(0, booster.num_boosted_rounds()))).max() > 1e-4


FOREST = {"boosting": "rf", "bagging_freq": 1, "bagging_fraction": 0.5}


@pytest.mark.parametrize(
    "settings",
    [
        {"objective": "binary", "sigmoid": 2},
        {"objective": "binary", "zero_as_missing": True},
        {"objective": "multiclass", "num_class": 10, **FOREST},
        {"objective": "regression", **FOREST},
        {"objective": "huber"},
        {"objective": "fair"},
        {"objective": "mape"},
        {"objective": "poisson"},
        {"objective": "gamma"},
        {"objective": "tweedie"},
        {"objective": "lambdarank"},
    ],
    ids=lambda settings: " ".join(map(str, settings.values())),
)
def test_lightgbm_objective_is_converted_to_the_library_s_own_outputs(
    convert, workspace: Make, tmp_path: Path, settings: dict[str, Any]
) -> None:
    points, labels = digits(2 if settings["objective"] == "binary" else 10, 0.2)
    group = [10] * (len(points) // 10) + [len(points) % 10] if settings["objective"] == "lambdarank" else None
    labels += settings["objective"] == "gamma"
    data = lightgbm.Dataset(points, labels, group=group, params={"verbosity": -1})
    lightgbm.train(settings | {"verbosity": -1, "learning_rate": 0.3}, data, 5).save_model(tmp_path / "m.txt")
    same_outputs(
        convert, workspace, tmp_path / "m.txt", points, lightgbm.Booster(model_file=tmp_path / "m.txt").predict
    )


@pytest.mark.parametrize(
    "settings",
    [
        {"objective": "multi:softprob", "num_class": 10, "booster": "dart", "rate_drop": 0.5},
        {"objective": "multi:softprob", "num_class": 10, "num_parallel_tree": 3, "subsample": 0.5},
        {"objective": "reg:squarederror"},
        {"objective": "count:poisson"},
        {"objective": "reg:gamma"},
        {"objective": "reg:tweedie", "booster": "dart", "rate_drop": 0.5},
        {"objective": "rank:ndcg"},
        {"objective": "binary:logistic", "booster": "gblinear", "base_score": 0.3},
        {"objective": "multi:softprob", "num_class": 10, "booster": "gblinear"},
        {"objective": "reg:squarederror", "booster": "gblinear"},
        {"objective": "count:poisson", "booster": "gblinear"},
    ],
    ids=lambda settings: " ".join(map(str, settings.values())),
)
def test_xgboost_objective_is_converted_to_the_library_s_own_outputs(
    convert, workspace: Make, tmp_path: Path, settings: dict[str, Any]
) -> None:
    points, labels = digits(2 if settings["objective"] == "binary:logistic" else 10, 0.2)
    data = xgboost.DMatrix(points, labels + (settings["objective"] == "reg:gamma"))
    if settings["objective"] == "rank:ndcg":
        data.set_group([10] * (len(points) // 10) + [len(points) % 10])
    booster = xgboost.train(settings | {"verbosity": 0}, data, 5)
    booster.save_model(tmp_path / "m.json")
    same_outputs(convert, workspace, tmp_path / "m.json", points, lambda x: booster.predict(xgboost.DMatrix(x)))


def test_xgboost_model_that_returns_classes_gets_their_probabilities_too(
    convert, workspace: Make, tmp_path: Path
) -> None:
    points, labels = digits(3, 0.0)
    booster = xgboost.train({"objective": "multi:softmax", "num_class": 3}, xgboost.DMatrix(points, labels), 3)
    booster.save_model(tmp_path / "m.json")
    report = BoostingModel(model=tmp_path / "m.json").fit(splits_of(points, labels), signature_of(3), workspace())
    label, probabilities = open_session(convert(report)).run(None, {"pixels": points})
    assert np.array_equal(label, booster.predict(xgboost.DMatrix(points)))
    assert np.array_equal(label, probabilities.argmax(1))


@pytest.mark.parametrize("one_by_one", [1, 100])
def test_categories_split_as_in_xgboost(convert, workspace: Make, tmp_path: Path, one_by_one: int) -> None:
    rng = np.random.default_rng(0)
    points = np.stack([rng.integers(0, 12, 600), rng.random(600)], 1).astype(np.float32)
    labels = ((points[:, 0] * 7 % 5 > 2) ^ (points[:, 1] > 0.7)).astype(np.int64)
    data = xgboost.DMatrix(points, labels, feature_types=["c", "q"], enable_categorical=True)
    booster = xgboost.train({"objective": "binary:logistic", "max_cat_to_onehot": one_by_one}, data, 5)
    booster.save_model(tmp_path / "m.json")
    unknown = points.copy()
    unknown[::7, 0], unknown[1::7, 0], unknown[2::7, 0] = np.nan, 99, -3
    report = BoostingModel(model=tmp_path / "m.json").fit(splits_of(unknown, labels), signature_of(2, 2), workspace())
    assert convert(report).exists()


def same_outputs(convert, workspace: Make, file: Path, points: np.ndarray, predict: Callable[..., Any]) -> None:
    """Other values than those of the training, also missing where none was, and zeros that are not quite zero."""
    others = points + np.random.default_rng(1).normal(0, 0.1, points.shape).astype(np.float32)
    others[::5, ::3], others[1::5], others[2::5, ::2] = np.nan, points[1::5], 1e-36
    expected = np.asarray(predict(others))
    classes = expected.shape[1] if expected.ndim == 2 else 2 * (load(file).classes == 2)
    signature = signature_of(classes) if classes else signature_of(0).replace(task="regression")
    splits = dict.fromkeys(("train", "validation", "test"), ArraySplit({"pixels": others}))
    session = open_session(convert(BoostingModel(model=file).fit(splits, signature, workspace())))
    actual = session.run(None, {"pixels": others})[-1]
    actual = actual[:, 1] if classes == 2 else actual
    np.testing.assert_allclose(actual.reshape(expected.shape), expected, rtol=1e-5, atol=1e-5)


def test_labels_that_are_not_what_the_model_predicts_are_refused(workspace: Make, tmp_path: Path) -> None:
    points, labels = digits(3, 0.0)
    data = xgboost.DMatrix(points, labels)
    xgboost.train({"verbosity": 0}, data, 2).save_model(tmp_path / "regressor.json")
    data.set_group([len(points)])
    xgboost.train({"objective": "rank:pairwise"}, data, 2).save_model(tmp_path / "ranker.json")
    values = signature_of(0).replace(task="regression")
    with pytest.raises(StageError, match=r"a ranker \(rank:pairwise\).* Fix: remove the labels"):
        BoostingModel(model=tmp_path / "ranker.json").fit(splits_of(points, labels.astype(float)), values, workspace())
    with pytest.raises(StageError, match="a regressor, and the data's labels are classes"):
        BoostingModel(model=tmp_path / "regressor.json").fit(splits_of(points, labels), signature_of(3), workspace())


@pytest.mark.parametrize(
    ("settings", "categories", "what"),
    [
        ({"linear_tree": True}, [], "linear models in its leaves"),
        ({"zero_as_missing": True}, [5], "categories beside zeros that are missing values"),
    ],
)
def test_lightgbm_model_is_refused_when_the_exporter_would_write_another_function(
    workspace: Make, tmp_path: Path, settings: dict[str, Any], categories: list[int], what: str
) -> None:
    points, labels = digits(2, 0.0)
    points[:, 5] = np.arange(len(points)) % 8  # a number, or a category, on which the labels depend
    labels = ((points[:, 5] * 3 % 5 > 1) ^ (points[:, 20] > 0.5)).astype(np.int64)
    wanted = {"objective": "binary", "verbosity": -1, "min_data_per_group": 1, "cat_smooth": 0} | settings
    data = lightgbm.Dataset(points, labels, categorical_feature=categories, params=wanted)
    lightgbm.train(wanted, data, 5).save_model(tmp_path / "m.txt")
    out = workspace()
    report = BoostingModel(model=tmp_path / "m.txt").fit(splits_of(points, labels), signature_of(2), out)
    model, golden = report.artifacts["model"], report.artifacts["golden"]
    with pytest.raises(StageError, match=rf"{what}.*, which onnxmltools converts to another function. Fix: "):
        export(OnnxMlTools(), out, model=model, signature=report.facts.signature, golden=golden)
