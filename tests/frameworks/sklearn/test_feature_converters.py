"""Encoders, scalers and selectors of features on values that the samples lack: as scikit-learn computes them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.cluster import KMeans
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import BaggingRegressor, ExtraTreesRegressor, RandomForestClassifier, StackingClassifier
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.feature_selection import VarianceThreshold
from sklearn.impute import KNNImputer, SimpleImputer
from sklearn.linear_model import LinearRegression, LogisticRegression, SGDOneClassSVM
from sklearn.mixture import GaussianMixture
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    KBinsDiscretizer,
    MaxAbsScaler,
    Normalizer,
    OneHotEncoder,
    PowerTransformer,
    StandardScaler,
)

from frameworks.sklearn.estimator import estimator_inputs, predict
from gauntlet.core.errors import StageError
from gauntlet.runtime.session import open_session

from .conftest import LABELS, NAMES, POINTS, Exported

COUNT = len(LABELS)
TABLE = {
    "place": np.array(["town", "city", *["village"] * 58, *["city"] * 60, *["isle"] * 2, *["town"] * 58]),
    "kind": np.array(["old", "new"] * (COUNT // 2)),
    "rooms": np.array([1, 2, 3, 1, 2, 1] * (COUNT // 6 - 1) + [8] * 6),
    "stars": np.array([0.5, 1.5, 1.5] * (COUNT // 3), np.float32),
}
UNSEEN = {
    "place": np.array(["isle", "moon", "", "city"]),
    "kind": np.array(["old", "ruin", "new", "old"]),
    "rooms": np.array([8, 5, 1, -1]),
    "stars": np.array([1.0, 1.5, 0.0, 0.5], np.float32),
}


BINS = KBinsDiscretizer(5, quantile_method="linear")


def require_equal(model: Exported, estimator: Any, inputs: dict[str, np.ndarray]) -> None:
    """Pass the gates, and return for these inputs, alone too, what scikit-learn does."""
    for report in model.gates():
        report.raise_if_blocked()
    session = open_session(model.path)
    texts = {name: array.astype(object) if array.dtype.kind == "U" else array for name, array in inputs.items()}
    for rows in (slice(0, 1), slice(0, None)):
        expected = predict(estimator, estimator_inputs(estimator, {name: a[rows] for name, a in inputs.items()}))
        actual = session.run([*expected], {name: array[rows] for name, array in texts.items()})
        for own, theirs in zip(actual, expected.values(), strict=True):
            np.testing.assert_allclose(own, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("unknown", ["ignore", "infrequent_if_exist"])
@pytest.mark.parametrize("drop", [None, "first", "if_binary"])
@pytest.mark.parametrize("least", [None, 10])
@pytest.mark.filterwarnings("ignore:Found unknown categories")
def test_unknown_and_infrequent_categories_are_encoded_as_the_fit_did(
    exported: Callable[..., Exported], unknown: str, drop: str | None, least: int | None
) -> None:
    def encoder() -> OneHotEncoder:
        return OneHotEncoder(handle_unknown=unknown, drop=drop, min_frequency=least)

    estimator = ColumnTransformer(
        [("texts", encoder(), ["place", "kind"]), ("whole", encoder(), ["rooms"]), ("halves", encoder(), ["stars"])]
    )
    frame = pd.DataFrame({name: a.astype(object) if a.dtype.kind == "U" else a for name, a in TABLE.items()})
    require_equal(exported(estimator.fit(frame), TABLE, labels=False), estimator, UNSEEN)


def test_infrequent_categories_in_a_matrix_are_one(exported: Callable[..., Exported]) -> None:
    matrix = np.stack([TABLE["place"], TABLE["kind"]], 1)
    encoder = OneHotEncoder(handle_unknown="infrequent_if_exist", max_categories=2)
    estimator = make_pipeline(encoder, StandardScaler(with_mean=False), LogisticRegression()).fit(matrix, LABELS)
    unseen = np.stack([UNSEEN["place"], UNSEEN["kind"]], 1)
    require_equal(exported(estimator, {"x": matrix}), estimator, {"x": unseen})


def test_column_of_infrequent_categories_alone_is_refused(exported: Callable[..., Exported]) -> None:
    encoder = OneHotEncoder(handle_unknown="infrequent_if_exist", min_frequency=COUNT)
    with pytest.raises(StageError, match=r"infrequent categories alone.*Fix: "):
        exported(encoder.fit(TABLE["place"][:, None]), {"x": TABLE["place"][:, None]}, labels=False)


@pytest.mark.parametrize(
    ("estimator", "seen", "unseen"),
    [
        (Normalizer("max"), np.abs(POINTS), -POINTS),
        (PowerTransformer(), POINTS, np.where(POINTS > 1, np.float32(np.nan), POINTS)),
        (PowerTransformer("box-cox", standardize=False), np.abs(POINTS) + 1, np.abs(POINTS) + np.float32(0.1)),
        (make_pipeline(VarianceThreshold(50), LinearRegression()), POINTS * [9, *[1] * 7], POINTS),
        (KNNImputer(n_neighbors=3), np.where(POINTS > 1, np.nan, POINTS), np.full_like(POINTS, np.nan)),
        (make_pipeline(ColumnTransformer([("two", StandardScaler(), [0, 1])]), SGDOneClassSVM()), POINTS, -POINTS),
        (MaxAbsScaler(clip=True), POINTS, 3 * POINTS),
        (BINS, POINTS, -POINTS),
        (ColumnTransformer([("bins", BINS, [-1])]), POINTS, POINTS),
    ],
    ids=[
        "magnitude",
        "missing value",
        "box-cox",
        "first column",
        "no value",
        "scores",
        "clipped",
        "bins",
        "last column",
    ],
)
def test_values_that_the_samples_lack_are_right(
    exported: Callable[..., Exported], estimator: Any, seen: np.ndarray, unseen: np.ndarray
) -> None:
    seen = seen.astype(np.float32)
    estimator.fit(seen, seen[:, 0])
    require_equal(exported(estimator, {"x": seen}, labels=False), estimator, {"x": unseen})


@pytest.mark.filterwarnings("ignore:Found unknown categories")
def test_mixture_of_an_unknown_category_is_not_decided_by_rounding(exported: Callable[..., Exported]) -> None:
    encoder = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    features = ColumnTransformer([("a", encoder, ["kind"]), ("b", StandardScaler(), ["stars"])], sparse_threshold=0)
    inputs = {name: TABLE[name] for name in ("kind", "stars")}
    estimator = make_pipeline(features, GaussianMixture(3, random_state=0)).fit(pd.DataFrame(inputs))
    require_equal(exported(estimator, inputs, labels=False), estimator, {name: UNSEEN[name] for name in inputs})


@pytest.mark.parametrize("kind", [CountVectorizer, TfidfVectorizer])
@pytest.mark.parametrize("lengths", [(1, 1), (1, 3)])
def test_spaces_in_a_row_are_one_where_characters_are_counted(
    exported: Callable[..., Exported], kind: Any, lengths: tuple[int, int]
) -> None:
    texts = np.array([f"apple tart {number}" for number in range(COUNT)])
    estimator = kind(analyzer="char", ngram_range=lengths).fit(texts)
    unseen = np.array(["  ", "apple   tart", "a\t b", "", "a\u3000\n1", "\n", " 1"])
    require_equal(exported(estimator, {"text": texts}, labels=False), estimator, {"text": unseen})


@pytest.mark.parametrize(
    "estimator",
    [
        make_pipeline(StandardScaler(), BaggingRegressor(ExtraTreesRegressor(2), 2, random_state=0)),
        StackingClassifier([("trees", RandomForestClassifier(3, random_state=0))], cv=2),
    ],
    ids=["bagged", "stacked"],
)
@pytest.mark.parametrize("share", [0, 0.2])
def test_trees_in_another_estimator_follow_missing_values(
    exported: Callable[..., Exported], estimator: Any, share: float
) -> None:
    gaps = np.where(np.random.default_rng(1).random(POINTS.shape) < 0.2, np.float32(np.nan), POINTS)
    seen = gaps if share else POINTS
    estimator.fit(seen, LABELS)
    require_equal(exported(estimator, {"x": seen}, labels="classes_" in vars(estimator)), estimator, {"x": gaps})


def test_trees_of_several_labels_follow_missing_values(exported: Callable[..., Exported]) -> None:
    labels, gaps = np.stack([LABELS > 0, LABELS > 1], 1).astype(int), np.where(POINTS > 1, np.float32(np.nan), POINTS)
    forest = RandomForestClassifier(3, random_state=0).fit(POINTS, labels)
    require_equal(exported(forest, {"x": POINTS}, labels=False), forest, {"x": gaps})


@pytest.mark.parametrize("strategy", ["most_frequent", "constant"])
def test_missing_text_has_no_characters(exported: Callable[..., Exported], strategy: str) -> None:
    table = pd.DataFrame(TABLE).drop(columns="rooms").replace({"place": {"isle": np.nan}, "stars": {0.5: np.nan}})
    texts = make_pipeline(SimpleImputer(strategy=strategy, fill_value="none"), OneHotEncoder(handle_unknown="ignore"))
    numbers = make_pipeline(SimpleImputer(), StandardScaler())
    columns = [("texts", texts, ["place"]), ("kinds", OneHotEncoder(), ["kind"]), ("numbers", numbers, ["stars"])]
    estimator = make_pipeline(ColumnTransformer(columns), LogisticRegression()).fit(table, LABELS % 2)
    inputs = TABLE | {"place": table["place"].fillna("").to_numpy(str), "stars": table["stars"].to_numpy()}
    inputs.pop("rooms")
    given = predict(estimator, estimator_inputs(estimator, inputs))
    np.testing.assert_allclose(given["probabilities"], estimator.predict_proba(table), rtol=1e-6)
    require_equal(exported(estimator, inputs), estimator, inputs)


NUMBERS = pd.DataFrame(POINTS[:, :3].astype(np.float64), columns=["height", "width", "depth"])


@pytest.mark.parametrize("by_column", [False, True], ids=["matrix", "columns"])
@pytest.mark.parametrize(
    "estimator",
    [
        make_pipeline(ColumnTransformer([("two", StandardScaler(), ["depth", "height"])]), LogisticRegression()),
        RandomForestClassifier(3, random_state=0),
    ],
    ids=["columns by name", "forest"],
)
def test_estimator_of_a_table_takes_a_matrix_and_columns(
    exported: Callable[..., Exported], estimator: Any, by_column: bool
) -> None:
    estimator.fit(NUMBERS, LABELS)
    inputs = {name: NUMBERS[name].to_numpy(np.float32) for name in NUMBERS} if by_column else {"x": POINTS[:, :3]}
    model = exported(estimator, inputs)
    require_equal(model, estimator, inputs)
    label = open_session(model.path).run(["label"], inputs)[0]
    np.testing.assert_array_equal(label, estimator.predict(NUMBERS.astype(np.float32)))


def test_estimator_of_a_table_takes_its_only_column(exported: Callable[..., Exported]) -> None:
    texts = np.array([f"{NAMES[label]} tart" for label in LABELS])
    words = make_pipeline(ColumnTransformer([("words", CountVectorizer(), "text")]), LogisticRegression())
    words.fit(pd.DataFrame({"text": texts}), LABELS)
    require_equal(exported(words, {"text": texts}), words, {"text": np.array(["pear", "", "apple quince"])})


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_clusters_are_found_in_floats_of_the_type_of_their_fit(exported: Callable[..., Exported], dtype: Any) -> None:
    """scikit-learn's own refuse others."""
    clusters = make_pipeline(StandardScaler(), KMeans(3, n_init=1, random_state=0)).fit(POINTS.astype(dtype))
    require_equal(exported(clusters, {"x": POINTS}, labels=False), clusters, {"x": -POINTS})
