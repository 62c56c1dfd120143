"""Estimators of every kind pass the gates of structure and numerics as ONNX models."""

from typing import Any

import numpy as np
import pytest
from sklearn.calibration import CalibratedClassifierCV
from sklearn.cluster import KMeans
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis
from sklearn.ensemble import (
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    IsolationForest,
    RandomForestClassifier,
    RandomTreesEmbedding,
    StackingClassifier,
    VotingClassifier,
)
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.feature_selection import RFE
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, Ridge, RidgeClassifier, SGDClassifier, SGDOneClassSVM
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import GridSearchCV
from sklearn.multiclass import OneVsOneClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import KBinsDiscretizer, OneHotEncoder, StandardScaler
from sklearn.svm import SVC, SVR, LinearSVC

from .conftest import LABELS, NAMES, POINTS

CLASSIFIERS = {
    "logistic regression": LogisticRegression(),
    "SVC without probabilities": make_pipeline(StandardScaler(), SVC()),
    "linear SVC": make_pipeline(StandardScaler(), LinearSVC()),
    "ridge": RidgeClassifier(),
    "SGD": make_pipeline(StandardScaler(), SGDClassifier(random_state=0)),
    "naive Bayes": GaussianNB(),
    "neighbours": KNeighborsClassifier(),
    "network": make_pipeline(StandardScaler(), MLPClassifier((8,), max_iter=30, random_state=0)),
    "calibrated": CalibratedClassifierCV(LinearSVC(random_state=0)),
    "forest": RandomForestClassifier(8, random_state=0),
    "boosting": GradientBoostingClassifier(n_estimators=4, random_state=0),
    "stack": StackingClassifier([("a", LogisticRegression()), ("b", GaussianNB())]),
    "vote": VotingClassifier([("a", LogisticRegression()), ("b", RandomForestClassifier(4))], voting="soft"),
    "search": GridSearchCV(make_pipeline(StandardScaler(), LogisticRegression()), {"logisticregression__C": [1, 2]}),
    "histograms": HistGradientBoostingClassifier(max_iter=3),
    "one against one": OneVsOneClassifier(LogisticRegression()),
    "quadratic": QuadraticDiscriminantAnalysis(reg_param=0.1),
    "selection": RFE(LogisticRegression(), n_features_to_select=4),
    "selection first": make_pipeline(RFE(LogisticRegression(), n_features_to_select=4), SVC()),
    "inner pipeline": make_pipeline(PCA(4, random_state=0), make_pipeline(StandardScaler(), LogisticRegression())),
}


@pytest.mark.parametrize("name", CLASSIFIERS)
@pytest.mark.filterwarnings("ignore")
def test_classifier_passes_both_gates_when_it_is_brought(exported, name: str) -> None:
    model = exported(CLASSIFIERS[name].fit(POINTS, LABELS))
    for report in model.gates():
        report.raise_if_blocked()
    assert model.signature.primary_output in ("probabilities", "scores")


@pytest.mark.parametrize("estimator", [LogisticRegression(), SVC(), LinearSVC(), RidgeClassifier()], ids=repr)
def test_classifier_of_two_text_classes_passes_both_gates_when_it_is_brought(exported, estimator: Any) -> None:
    few = LABELS < 2
    model = exported(estimator.fit(POINTS[few], NAMES[LABELS[few]]), {"features": POINTS[few]}, labels=False)
    for report in model.gates():
        report.raise_if_blocked()
    assert model.signature.labels == ("apple", "pear")
    assert [(o.dtype, o.shape[1:]) for o in model.signature.outputs] == [("str", ()), ("float32", (2,))]


def test_classes_that_are_voted_for_have_no_scores(exported) -> None:
    model = exported(VotingClassifier([("a", LogisticRegression()), ("b", GaussianNB())]).fit(POINTS, LABELS))
    for report in model.gates():
        report.raise_if_blocked()
    assert [spec.name for spec in model.signature.outputs] == ["label"]


@pytest.mark.parametrize(
    ("estimator", "outputs"),
    [
        (Ridge(), {"variable": 1}),
        (make_pipeline(StandardScaler(), SVR()), {"variable": 1}),
        (make_pipeline(StandardScaler(), PCA(3, random_state=0)), {"variable": 3}),
        (KMeans(4, n_init=1, random_state=0), {"label": None, "scores": 4}),
        (IsolationForest(n_estimators=8, random_state=0), {"label": 1, "scores": 1}),
        (SGDOneClassSVM(random_state=0), {"label": 1, "scores": 1}),
        (GaussianMixture(3, random_state=0), {"label": None, "probabilities": 3}),
        (KBinsDiscretizer(3, quantile_method="averaged_inverted_cdf"), {"variable": 24}),
        (RandomTreesEmbedding(2, max_depth=1, random_state=0), {"variable": 4}),
        (HistGradientBoostingRegressor(max_iter=3), {"variable": 1}),
    ],
    ids=lambda value: "" if isinstance(value, dict) else type(value).__name__,
)
def test_model_that_is_no_classifier_passes_both_gates_when_it_is_brought(exported, estimator, outputs) -> None:
    model = exported(estimator.fit(POINTS, LABELS.astype(float)), labels=False)
    for report in model.gates():
        report.raise_if_blocked()
    assert {o.name: o.shape[1] if len(o.shape) > 1 else None for o in model.signature.outputs} == outputs


@pytest.mark.parametrize("axes", [1, 2])
def test_pipeline_over_columns_of_several_types_passes_both_gates(exported, axes: int) -> None:
    import pandas as pd

    ages, colours = LABELS * 3 + np.arange(180) % 2, NAMES[(LABELS + np.arange(180) % 2) % 3]
    table = {"weight": POINTS[:, 0], "age": ages, "colour": colours}
    columns = ColumnTransformer(
        [("numbers", StandardScaler(), ["weight", "age"]), ("texts", OneHotEncoder(), ["colour"])]
    )
    fitted = make_pipeline(columns, LogisticRegression()).fit(pd.DataFrame(table), LABELS)
    model = exported(fitted, table if axes == 1 else {name: column[:, None] for name, column in table.items()})
    for report in model.gates():
        report.raise_if_blocked()
    expected = [("weight", "float32"), ("age", "int64"), ("colour", "str")]
    assert [(i.name, i.dtype) for i in model.signature.inputs] == expected
    assert {spec.shape for spec in model.signature.inputs} == {("batch", 1)[:axes]}


AGE, FLAG = LABELS * 3 + np.arange(180) % 2, (LABELS == 1) ^ (np.arange(180) % 5 == 0)


MIXED = {
    "arrays of one axis": make_pipeline(SimpleImputer(), StandardScaler()),
    "imputer": SimpleImputer(),
    "scaler": StandardScaler(),
    "columns by name": ColumnTransformer(
        [("numbers", SimpleImputer(), ["age", "weight"]), ("codes", OneHotEncoder(), ["code"])], remainder="passthrough"
    ),
    "columns by number": ColumnTransformer([("numbers", StandardScaler(), slice(0, 2)), ("rest", "passthrough", [2])]),
}


@pytest.mark.parametrize("name", MIXED)
def test_step_over_columns_of_integers_and_floats_passes_both_gates(exported, name: str) -> None:
    import pandas as pd

    code = LABELS + (2**24 if name == "columns by name" else 0)  # odd ones that float32 does not have
    table = {"age": AGE, "weight": POINTS[:, 0], "code": code, "flag": FLAG}
    frame = pd.DataFrame(table)
    if name != "arrays of one axis":
        table = {name: column[:, None] for name, column in table.items()}
    model = exported(make_pipeline(MIXED[name], LogisticRegression()).fit(frame, LABELS), table)
    for report in model.gates():
        report.raise_if_blocked()
    assert [spec.dtype for spec in model.signature.inputs] == ["int64", "float32", "int64", "bool"]


def test_pipeline_over_texts_passes_both_gates(exported) -> None:
    texts = np.array([f"{NAMES[label]} Tart number {place % 5}" for place, label in enumerate(LABELS)])
    model = exported(make_pipeline(CountVectorizer(), LogisticRegression()).fit(texts, LABELS), {"text": texts})
    for report in model.gates():
        report.raise_if_blocked()


@pytest.mark.parametrize("estimator", [RandomForestClassifier(4, random_state=0), HistGradientBoostingClassifier()])
def test_trees_send_missing_values_where_the_fit_did(exported, estimator: Any) -> None:
    gaps = np.where(np.random.default_rng(1).random(POINTS.shape) < 0.2, np.float32(np.nan), POINTS)
    for report in exported(estimator.fit(gaps, LABELS), {"features": gaps}).gates():
        report.raise_if_blocked()
