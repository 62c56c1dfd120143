"""scikit-learn to ONNX: estimators of every kind pass both gates with the same answers and bytes, or are refused."""

from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from sklearn.calibration import CalibratedClassifierCV
from sklearn.cluster import DBSCAN, KMeans
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis
from sklearn.ensemble import (
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
from sklearn.manifold import Isomap
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import GridSearchCV
from sklearn.multiclass import OneVsOneClassifier, OneVsRestClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier, KNeighborsTransformer, RadiusNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import KBinsDiscretizer, OneHotEncoder, OrdinalEncoder, StandardScaler
from sklearn.svm import SVC, SVR, LinearSVC

from frameworks.sklearn.classifier_training import SklearnTraining
from frameworks.sklearn.skl2onnx import Skl2Onnx
from gauntlet.core.errors import StageError
from gauntlet.core.signature import Signature, TensorSpec
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.golden import Golden
from gauntlet.datasets.splits import ArraySplit
from gauntlet.runtime.session import open_session

from .conftest import CLASSES, FEATURES, LABELS, NAMES, POINTS, Exported

TEXTS = np.array([f"{NAMES[label]} Tart number {place}" for place, label in enumerate(LABELS)])
CLASSIFIERS = {
    "logistic regression": LogisticRegression(),
    "SVC without probabilities": make_pipeline(StandardScaler(), SVC()),
    "neighbours": KNeighborsClassifier(),
    "neighbours by distance": KNeighborsClassifier(weights="distance"),
    "calibrated": CalibratedClassifierCV(LinearSVC(random_state=0)),
    "stack": StackingClassifier([("a", LogisticRegression()), ("b", GaussianNB())]),
    "vote": VotingClassifier([("a", LogisticRegression()), ("b", RandomForestClassifier(4))], voting="soft"),
    "weighted vote": VotingClassifier(
        [("a", LogisticRegression()), ("b", GaussianNB())], voting="soft", weights=[1, 3]
    ),
    "search": GridSearchCV(make_pipeline(StandardScaler(), LogisticRegression()), {"logisticregression__C": [1, 2]}),
    "histograms": HistGradientBoostingClassifier(max_iter=3),
    "one against one": OneVsOneClassifier(LogisticRegression()),
    "quadratic": QuadraticDiscriminantAnalysis(reg_param=0.1),
    "selection": RFE(LogisticRegression(), n_features_to_select=4),
    "selection first": make_pipeline(RFE(LogisticRegression(), n_features_to_select=4), SVC()),
}


@pytest.mark.parametrize("name", CLASSIFIERS)
@pytest.mark.filterwarnings("ignore")
def test_classifier_passes_both_gates_when_it_is_brought(exported, name: str) -> None:
    model = exported(CLASSIFIERS[name].fit(POINTS, LABELS))
    model.pass_gates()
    assert model.signature.primary_output in ("probabilities", "scores")


@pytest.mark.parametrize("estimator", [LogisticRegression(), SVC(), LinearSVC(), RidgeClassifier()], ids=repr)
def test_classifier_of_two_text_classes_passes_both_gates_when_it_is_brought(exported, estimator: Any) -> None:
    few = LABELS < 2
    model = exported(estimator.fit(POINTS[few], NAMES[LABELS[few]]), {"features": POINTS[few]}, labels=False)
    model.pass_gates()
    assert model.signature.labels == ("apple", "pear")
    assert [(o.dtype, o.shape[1:]) for o in model.signature.outputs] == [("str", ()), ("float32", (2,))]


@pytest.mark.parametrize(
    "model",
    [
        SGDClassifier(loss="log_loss", random_state=0),
        make_pipeline(PCA(4, random_state=0), SGDClassifier(loss="modified_huber", random_state=0)),
        OneVsRestClassifier(LogisticRegression()),
    ],
    ids=["log_loss", "modified_huber", "one against the rest"],
)
def test_label_follows_the_scores_where_probabilities_round_to_one(exported, model: Any) -> None:
    model.fit(POINTS, LABELS)
    file, large = exported(model), (40 * POINTS).astype(np.float32)
    file.pass_gates()
    label, probabilities = open_session(file.path).run(["label", "probabilities"], {"features": large})
    np.testing.assert_array_equal(label, model.predict(large))
    np.testing.assert_allclose(probabilities, model.predict_proba(large), atol=1e-4)


def test_classes_that_are_voted_for_have_no_scores(exported) -> None:
    model = exported(VotingClassifier([("a", LogisticRegression()), ("b", GaussianNB())]).fit(POINTS, LABELS))
    model.pass_gates()
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
        (HistGradientBoostingRegressor(max_iter=3, loss="poisson"), {"variable": 1}),
        (KNeighborsTransformer(n_neighbors=3), {"variable": 180}),
    ],
    ids=lambda value: "" if isinstance(value, dict) else type(value).__name__,
)
def test_model_that_is_no_classifier_passes_both_gates_when_it_is_brought(exported, estimator, outputs) -> None:
    model = exported(estimator.fit(POINTS, LABELS.astype(float)), labels=False)
    model.pass_gates()
    assert {o.name: o.shape[1] if len(o.shape) > 1 else None for o in model.signature.outputs} == outputs


@pytest.mark.parametrize(
    ("axes", "names"),
    [(1, ("weight", "age", "colour")), (2, ("weight", "age", "colour")), (1, ("a, b", "a__b", "größe"))],
)
def test_pipeline_over_columns_of_several_types_passes_both_gates(exported, axes: int, names: tuple[str, ...]) -> None:
    import pandas as pd

    ages, colours = LABELS * 3 + np.arange(180) % 2, NAMES[(LABELS + np.arange(180) % 2) % 3]
    table = dict(zip(names, (POINTS[:, 0], ages, colours), strict=True))
    columns = ColumnTransformer([("numbers", StandardScaler(), [*names[:2]]), ("texts", OneHotEncoder(), [*names[2:]])])
    fitted = make_pipeline(columns, LogisticRegression()).fit(pd.DataFrame(table), LABELS)
    model = exported(fitted, table if axes == 1 else {name: column[:, None] for name, column in table.items()})
    model.pass_gates()
    expected = [*zip(names, ("float32", "int64", "str"), strict=True)]
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
    model.pass_gates()
    assert [spec.dtype for spec in model.signature.inputs] == ["int64", "float32", "int64", "bool"]


@pytest.mark.parametrize("encoder", [OneHotEncoder(drop="if_binary"), OrdinalEncoder()])
def test_encoder_of_booleans_passes_both_gates(exported, encoder: object) -> None:
    import pandas as pd

    frame = pd.DataFrame({"flag": FLAG, "weight": POINTS[:, 0]})
    encoded = ColumnTransformer([("flags", encoder, ["flag"])], remainder="passthrough")
    columns = {name: frame[name].to_numpy()[:, None] for name in frame}
    model = exported(make_pipeline(encoded, LogisticRegression()).fit(frame, LABELS), columns)
    for report in model.gates():
        report.raise_if_blocked()
    assert [spec.dtype for spec in model.signature.inputs] == ["bool", "float32"]


def test_pipeline_over_texts_passes_both_gates(exported) -> None:
    model = exported(make_pipeline(CountVectorizer(), LogisticRegression()).fit(TEXTS, LABELS), {"text": TEXTS})
    model.pass_gates()


@pytest.mark.parametrize("pattern", [r"(?u)\b\w\w+\b", r"\b\w{3,}\b", r"[\w']+", "[a-zA-Z0-9_]+"])
def test_words_of_a_pattern_are_the_same_in_every_script(exported, pattern: str) -> None:
    counts = CountVectorizer(token_pattern=pattern, ngram_range=(1, 2))
    path = exported(make_pipeline(counts, LogisticRegression()).fit(TEXTS, LABELS), {"text": TEXTS}).path
    texts = np.array(
        ["apple\u00e9 pear", "applee\u0301 tart", "na\u00efve a tart", "\u65e5apple", "\u00c9APPLE a pear's tart"]
    )
    actual = open_session(path).run(["probabilities"], {"text": texts.astype(object)})[0]
    model = make_pipeline(counts, LogisticRegression()).fit(TEXTS, LABELS)
    np.testing.assert_allclose(actual, model.predict_proba(texts), atol=1e-5)


def test_numerics_fail_on_words_that_another_script_would_change(exported) -> None:
    counts = CountVectorizer(token_pattern=r"\b[a-zA-Z]{3,}\b")
    model = exported(make_pipeline(counts, LogisticRegression()).fit(TEXTS, LABELS), {"text": TEXTS})
    [failure, *_] = model.gates()[-1].failures
    assert "wrong where words end in letters of other scripts" in failure.detail


@pytest.mark.parametrize("estimator", [RandomForestClassifier(4, random_state=0), HistGradientBoostingClassifier()])
def test_trees_send_missing_values_where_the_fit_did(exported, estimator: Any) -> None:
    gaps = np.where(np.random.default_rng(1).random(POINTS.shape) < 0.2, np.float32(np.nan), POINTS)
    exported(estimator.fit(gaps, LABELS), {"features": gaps}).pass_gates()


@pytest.mark.parametrize("opset", [13, 18, 22])
def test_export_names_its_batch_and_its_tensors_when_any_opset_is_asked_for(exported, opset: int) -> None:
    model = exported(LogisticRegression().fit(POINTS, LABELS), opset=opset)
    graph = onnx.load(model.path).graph
    axes = {
        t.name: [d.dim_param or d.dim_value for d in t.type.tensor_type.shape.dim]
        for t in (*graph.input, *graph.output)
    }
    assert axes == {"features": ["batch", FEATURES], "label": ["batch"], "probabilities": ["batch", CLASSES]}
    assert [(o.domain, o.version) for o in onnx.load(model.path).opset_import if not o.domain] == [("", opset)]
    model.pass_gates()


def test_export_has_the_same_bytes_when_repeated(exported) -> None:
    first, again = exported(), exported()
    assert first.model == again.model


@pytest.mark.parametrize(
    ("estimator", "message"),
    [
        (Isomap(n_components=2), r"skl2onnx cannot convert Isomap: .*supported_converters"),
        (HistGradientBoostingClassifier(max_iter=2, categorical_features=[0]), "categories of a Hist.* Fix: encode"),
        (RadiusNeighborsClassifier(3.0, outlier_label=0), r"outside the radius.*Fix: "),
        (DBSCAN(), "DBSCAN can neither predict nor transform"),
    ],
)
def test_estimator_that_cannot_be_converted_is_refused_in_a_sentence(exported, estimator: Any, message: str) -> None:
    with pytest.raises(StageError, match=message):
        exported(estimator.fit(POINTS, LABELS % 2), labels=False)


def test_booster_in_an_estimator_is_refused_with_the_way_to_bring_it(exported) -> None:
    lightgbm = pytest.importorskip("lightgbm")
    estimator = lightgbm.LGBMClassifier(n_estimators=2, verbose=-1).fit(POINTS, LABELS)
    with pytest.raises(StageError, match=r"cannot convert LGBMClassifier.* Fix: save the booster itself"):
        exported(estimator)


def test_export_is_refused_in_a_sentence_when_an_input_has_a_strange_type(exported) -> None:
    with pytest.raises(StageError, match=r"input 'features' is uint8; skl2onnx takes float32, int64"):
        exported(LogisticRegression().fit(POINTS, LABELS), {"features": np.abs(POINTS).astype(np.uint8)})


def test_numerics_gate_fails_when_a_label_differs_though_probabilities_agree(exported) -> None:
    model = exported(LogisticRegression().fit(POINTS, LABELS))
    golden = Golden.load(model.out.path(model.golden))
    golden.real.outputs["label"][0] += 1
    path = model.out.folder / "golden.npz"
    golden.save(path)
    changed = Exported(model.out, model.model, model.out.store_file(path), model.signature, model.report)
    assert "numerics.min_top1_agreement" in [check.name for check in changed.gates()[1].failures]


@pytest.fixture(scope="module")
def svc(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """The source and an ONNX session of one trained model."""
    from frameworks.sklearn import estimator as source
    from gauntlet.core.artifact import Store

    out = Workspace(Store(tmp_path_factory.mktemp("store")), tmp_path_factory.mktemp("svc"))
    split = ArraySplit({"features": POINTS}, LABELS)
    spec = TensorSpec(name="features", dtype="float32", shape=("batch", FEATURES))
    signature = Signature(inputs=(spec,), outputs=(), layout="none", labels=tuple(NAMES))
    train = SklearnTraining().fit(dict.fromkeys(("train", "validation", "test"), split), signature, out)
    model = out.path(train.artifacts["model"])
    Skl2Onnx().write(model, train.facts.signature, out.folder / "model.onnx")
    return source.load(model, None), open_session(out.folder / "model.onnx")


@settings(max_examples=40)
@given(arrays.arrays(np.float32, (3, FEATURES), elements=st.floats(-8, 8, width=32)))
def test_probabilities_agree_and_sum_to_one_when_inputs_are_anything(svc, inputs: np.ndarray) -> None:
    estimator, session = svc
    actual = session.run(None, {"features": inputs})
    expected = estimator.predict_proba(inputs)
    np.testing.assert_allclose(actual[1], expected, rtol=0, atol=1e-5)
    np.testing.assert_allclose(actual[1].sum(1), 1, atol=1e-5)
    clear = np.diff(np.sort(expected, axis=1)[:, -2:])[:, 0] > 1e-4  # an exact tie may go either way
    assert np.array_equal(actual[0][clear], estimator.predict(inputs)[clear])
