"""What skl2onnx leaves out or converts to another function: the ONNX file returns what scikit-learn returns."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import skops.io
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import TransformedTargetRegressor
from sklearn.datasets import load_diabetes, load_iris
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.ensemble import ExtraTreesClassifier, GradientBoostingRegressor, RandomForestClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.impute import KNNImputer, SimpleImputer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import FixedThresholdClassifier, GridSearchCV, TunedThresholdClassifierCV
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import MultiOutputClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    MinMaxScaler,
    OneHotEncoder,
    PowerTransformer,
    RobustScaler,
    StandardScaler,
)
from sklearn.svm import SVC, LinearSVC

from frameworks.sklearn.brought_estimator import SklearnModel
from frameworks.sklearn.skl2onnx import Skl2Onnx
from gauntlet.core.errors import StageError
from gauntlet.core.signature import Signature, TensorSpec
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.splits import ArraySplit
from gauntlet.runtime.session import open_session
from tasks.train.facts import TrainFacts

ORDER = np.random.default_rng(0).permutation(150)
FLOWERS, SPECIES = (array[ORDER] for array in load_iris(return_X_y=True))
FLOWERS = FLOWERS.astype(np.float32)
PATIENTS, PROGRESS = load_diabetes(return_X_y=True)
PATIENTS = PATIENTS.astype(np.float32)
LINE = LogisticRegression(max_iter=500)
SEEN, UNSEEN = slice(0, 100), slice(100, 150)


@pytest.fixture
def exported(workspace: Callable[..., Workspace], tmp_path: Path) -> Callable[..., tuple[TrainFacts, list[np.ndarray]]]:
    """Return a function that fits and brings an estimator; it gives the facts, and the file's outputs for new rows."""

    def run(estimator: Any, inputs: np.ndarray, truth: np.ndarray) -> tuple[TrainFacts, list[np.ndarray]]:
        path, out = tmp_path / "model.skops", workspace()
        skops.io.dump(estimator.fit(inputs[SEEN], truth[SEEN]), path)
        dtype = "str" if inputs.dtype.kind == "U" else "float32"
        spec = TensorSpec(name="x", dtype=dtype, shape=("batch", *inputs.shape[1:]))
        splits = dict.fromkeys(("train", "validation", "test"), ArraySplit({"x": inputs[SEEN]}))
        model = SklearnModel(model=path, trust=True)
        facts = model.fit(splits, Signature(inputs=(spec,), outputs=(), layout="none"), out).facts
        Skl2Onnx().write(path, facts.signature, tmp_path / "model.onnx")
        return facts, open_session(tmp_path / "model.onnx").run(None, {"x": inputs[UNSEEN]})

    return run


@pytest.mark.parametrize("function", [np.log, np.log1p, np.log10, np.sqrt, np.square, np.exp, np.expm1, np.tanh])
def test_function_of_numpy_is_computed_in_the_graph(exported, function: Any) -> None:
    _, (values,) = exported(FunctionTransformer(function), FLOWERS, SPECIES)
    np.testing.assert_allclose(values, function(FLOWERS[UNSEEN]), rtol=1e-5)


def test_logarithm_of_small_numbers_keeps_their_digits(exported) -> None:
    _, (values,) = exported(FunctionTransformer(np.log1p), FLOWERS * np.float32(1e-6), SPECIES)
    np.testing.assert_allclose(values, np.log1p(FLOWERS[UNSEEN] * np.float32(1e-6)), rtol=1e-5)


def test_missing_values_are_marked(exported) -> None:
    gaps = np.where(np.random.default_rng(1).random(FLOWERS.shape) < 0.2, np.float32(np.nan), FLOWERS)
    gaps[:, 1] = FLOWERS[:, 1]
    estimator = make_pipeline(SimpleImputer(add_indicator=True), LINE)
    _, (label, probabilities) = exported(estimator, gaps, SPECIES)
    np.testing.assert_allclose(probabilities, estimator.predict_proba(gaps[UNSEEN]), atol=1e-5)
    assert np.array_equal(label, estimator.predict(gaps[UNSEEN]))
    assert estimator[0].transform(gaps[UNSEEN]).shape == (50, 7)


def test_unknown_category_is_none_of_the_known_ones(exported) -> None:
    colours = np.array([*"abcd" * 25, *"abcde" * 10])[:, None]
    estimator = make_pipeline(OneHotEncoder(handle_unknown="infrequent_if_exist"), LINE)
    _, outputs = exported(estimator, colours, SPECIES)
    np.testing.assert_allclose(outputs[1], estimator.predict_proba(colours[UNSEEN]), atol=1e-5)


def test_counts_of_words_are_damped(exported) -> None:
    words = np.random.default_rng(0).choice(["good", "bad", "fine", "it"], (150, 6))
    texts = np.array([" ".join(row) for row in words])
    estimator = make_pipeline(TfidfVectorizer(sublinear_tf=True), LINE)
    _, outputs = exported(estimator, texts, SPECIES)
    np.testing.assert_allclose(outputs[1], estimator.predict_proba(texts[UNSEEN]), atol=1e-5)


@pytest.mark.parametrize(
    ("estimator", "classes"),
    [(SVC(), 3), (GaussianNB(), 2), (LinearSVC(), 2)],
    ids=["three classes", "probabilities", "scores"],
)
def test_isotonic_calibration_is_interpolated(exported, estimator: Any, classes: int) -> None:
    calibrated = CalibratedClassifierCV(estimator, method="isotonic", cv=3)
    _, outputs = exported(calibrated, FLOWERS, np.minimum(SPECIES, classes - 1))
    np.testing.assert_allclose(outputs[1], calibrated.predict_proba(FLOWERS[UNSEEN]), atol=1e-4)


@pytest.mark.parametrize(
    "target",
    [
        {"func": np.log1p, "inverse_func": np.expm1},
        {"transformer": StandardScaler()},
        {"transformer": MinMaxScaler((2, 5))},
        {"transformer": RobustScaler()},
        {},
    ],
    ids=["logarithm", "standard", "range", "robust", "none"],
)
@pytest.mark.parametrize("several", [False, True], ids=["one value", "two values"])
def test_transformed_target_is_transformed_back(exported, target: dict[str, Any], several: bool) -> None:
    truth = np.stack([PROGRESS, PROGRESS**2], 1) if several else PROGRESS
    estimator = make_pipeline(StandardScaler(), TransformedTargetRegressor(Ridge(), **target))
    _, (values,) = exported(estimator, PATIENTS, truth)
    expected = estimator.predict(PATIENTS[UNSEEN]).reshape(50, -1)
    np.testing.assert_allclose(values, expected, rtol=1e-4)


def test_transformed_target_takes_any_regressor(exported) -> None:
    inner = make_pipeline(StandardScaler(), GradientBoostingRegressor(n_estimators=5, random_state=0))
    estimator = TransformedTargetRegressor(inner, func=np.log, inverse_func=np.exp)
    _, (values,) = exported(estimator, PATIENTS, PROGRESS)
    np.testing.assert_allclose(values[:, 0], estimator.predict(PATIENTS[UNSEEN]), rtol=1e-4)


@pytest.mark.parametrize(
    "estimator",
    [
        TunedThresholdClassifierCV(LINE, scoring="recall"),
        FixedThresholdClassifier(LINE, threshold=0.1),
        FixedThresholdClassifier(LINE, threshold=0.1, pos_label=0),
        FixedThresholdClassifier(LinearSVC(), threshold=-1.5),
        make_pipeline(StandardScaler(), FixedThresholdClassifier(make_pipeline(StandardScaler(), LINE), threshold=0.9)),
        GridSearchCV(make_pipeline(StandardScaler(), FixedThresholdClassifier(LINE, threshold=0.1)), {}, cv=2),
    ],
    ids=["tuned", "fixed", "of the first class", "of scores", "pipelines", "searched"],
)
@pytest.mark.parametrize("names", [np.arange(2), np.array(["no", "yes"])], ids=["numbers", "names"])
def test_label_follows_its_threshold(exported, estimator: Any, names: np.ndarray) -> None:
    if names.dtype.kind == "U" and getattr(estimator, "pos_label", None) == 0:
        estimator.set_params(pos_label="no")
    if names.dtype.kind == "U" and isinstance(estimator, TunedThresholdClassifierCV):
        estimator.set_params(scoring="balanced_accuracy")
    facts, (label, scores) = exported(estimator, FLOWERS, names[(SPECIES == 1).astype(int)])
    assert facts.signature.primary_output == "label"
    assert np.array_equal(label, estimator.predict(FLOWERS[UNSEEN]))
    if "Fixed" in str(estimator):
        assert np.any(label != names[scores.argmax(1)])


@pytest.mark.parametrize("classes", [2, 3])
def test_linear_discriminant_has_the_probabilities_of_its_classes(exported, classes: int) -> None:
    estimator = LinearDiscriminantAnalysis()
    _, (_, probabilities) = exported(estimator, FLOWERS, np.minimum(SPECIES, classes - 1))
    np.testing.assert_allclose(probabilities, estimator.predict_proba(FLOWERS[UNSEEN]), atol=1e-5)


TWO_LABELS = np.stack([SPECIES == 0, SPECIES < 2], 1).astype(np.int64)


@pytest.mark.parametrize(
    "estimator",
    [
        MLPClassifier(max_iter=30, random_state=0),
        ExtraTreesClassifier(5, random_state=0),
        KNeighborsClassifier(),
        MultiOutputClassifier(LINE),
        make_pipeline(StandardScaler(), OneVsRestClassifier(LINE)),
    ],
    ids=["network", "trees", "neighbors", "outputs", "one against the rest"],
)
def test_several_labels_have_a_probability_each(exported, estimator: Any) -> None:
    facts, (labels, probabilities) = exported(estimator, FLOWERS, TWO_LABELS)
    assert facts.signature.primary_output == "probabilities"
    assert np.array_equal(labels, estimator.predict(FLOWERS[UNSEEN]))
    expected = estimator.predict_proba(FLOWERS[UNSEEN])
    expected = np.stack([each[:, 1] for each in expected], 1) if isinstance(expected, list) else expected
    np.testing.assert_allclose(probabilities, expected, atol=1e-5)


@pytest.mark.parametrize("seed", range(3))
def test_thresholds_of_trees_with_several_labels_split_as_scikit_learn_does(exported, seed: int) -> None:
    numbers = np.random.default_rng(seed).integers(0, 40, (150, 3))
    near = np.float32(1) + numbers.astype(np.float32) * np.float32(2**-23)  # a threshold lies between neighbors
    forest = RandomForestClassifier(5, random_state=seed)
    _, (_, probabilities) = exported(forest, near, np.stack([numbers[:, 0] % 3 > 1, numbers[:, 1] > 20], 1).astype(int))
    expected = np.stack([each[:, 1] for each in forest.predict_proba(near[UNSEEN])], 1)
    np.testing.assert_allclose(probabilities, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("estimator", "truth", "reason"),
    [
        (ExtraTreesClassifier(2), np.stack([SPECIES, SPECIES], 1), "returns several classes for each sample"),
        (make_pipeline(KNNImputer(add_indicator=True), LINE), SPECIES, "leaves out the columns that mark missing"),
        (FunctionTransformer(np.cbrt), SPECIES, "the function cbrt"),
        (FunctionTransformer(np.log, kw_args={"where": True}), SPECIES, "kw_args"),
        (TransformedTargetRegressor(Ridge(), transformer=PowerTransformer()), SPECIES, "inverse of a PowerTransformer"),
        (
            FixedThresholdClassifier(LINE, threshold=0.1, response_method="decision_function"),
            SPECIES > 1,
            "a threshold of decision_function is not converted",
        ),
    ],
)
def test_estimator_is_refused_with_a_way_out(exported, estimator: Any, truth: np.ndarray, reason: str) -> None:
    with pytest.raises(StageError, match=rf"{reason}.*Fix: "):
        exported(estimator, FLOWERS, truth)
