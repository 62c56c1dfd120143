"""scikit-learn models as skops files: the same bytes when saved again, taken as they are, or refused in a sentence."""

import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import joblib
import numpy as np
import pandas as pd
import pytest
import skops.io
from gaussian_clusters import NAMES, SIZES, clouds, signature_of
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.svm import SVC

from configs.brought_model import is_model, kind_of
from frameworks.sklearn import estimator as sklearn_estimator
from frameworks.sklearn import estimator as source
from frameworks.sklearn.brought_estimator import SklearnModel
from frameworks.sklearn.labels import last_step
from gauntlet.core.artifact import Store
from gauntlet.core.errors import ConfigError, StageError
from gauntlet.core.report import Report
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.golden import Golden
from gauntlet.datasets.splits import ArraySplit, read_npz_split
from tasks.train.facts import TrainFacts
from wings.python_api.objects import samples_file

Fit = Callable[..., Report[TrainFacts]]


@pytest.fixture
def fit(workspace: Callable[..., Workspace]) -> Fit:
    def run(splits: dict[str, ArraySplit], labels: tuple[str, ...] = NAMES, **config: object) -> Report[TrainFacts]:
        return SklearnModel.model_validate(config).fit(splits, signature_of(splits, labels), workspace())

    return run


def brought(path: Path, model: object, **settings: object) -> dict[str, object]:
    skops.io.dump(model, path)
    return {"model": path, **settings}


def test_pipeline_is_taken_as_it_is_when_it_is_brought(
    fit: Fit, tmp_path: Path, workspace: Callable[..., Workspace]
) -> None:
    splits = clouds(dtype=np.float64)
    train = splits["train"]
    table = pd.DataFrame(train.inputs["features"]).add_prefix("column ")
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(table, train.labels)
    config = brought(tmp_path / "mine.skops", model)
    report = fit(splits, **config)
    report.raise_if_blocked()
    assert SklearnModel.model_validate(config).files() == (tmp_path / "mine.skops",)
    assert report.facts.signature.columns == tuple(table.columns)
    assert report.facts.signature.inputs[0].dtype == "float32"  # so that the ONNX model rounds where the source does
    golden = Golden.load(workspace().path(report.artifacts["golden"]))
    rounded = splits["test"].inputs["features"].astype(np.float32)
    assert np.array_equal(golden.test_outputs["probabilities"], model.predict_proba(rounded).astype(np.float32))
    kept = workspace().path(report.artifacts["model"])
    assert kept.read_bytes() == (tmp_path / "mine.skops").read_bytes()
    with np.load(workspace().path(report.artifacts["predictions"])) as file:  # nobody knows what it was trained on
        scored = [f"{split}{part}" for split in ("test", "validation") for part in ("", "_labels", "_scores")]
        assert sorted(file.files) == scored


def test_columns_of_a_stored_file_are_found_by_name_without_trusting_it_again(tmp_path: Path) -> None:
    """They were taken in the order of the table, and the forest's accuracy was 47 % instead of 100 %."""
    table = pd.DataFrame({"one": [1.0, 2, 3, 4], "two": [5.0, 6, 7, 8]})
    forest = RandomForestClassifier(3, random_state=0).fit(table, [0, 0, 1, 1])
    file, store = brought(tmp_path / "forest.skops", forest)["model"], Store(tmp_path / "store")
    table[["two", "one"]].assign(labels=[0, 0, 1, 1]).to_csv(tmp_path / "table.csv", index=False)

    def first_column() -> list[float]:
        read = read_npz_split(Path(str(samples_file(tmp_path / "table.csv", str(file), store))))
        return next(iter(read.inputs.values()))[:, 0].tolist()

    assert first_column() == [5, 6, 7, 8]  # nobody has trusted it: a run refuses it
    shutil.copy(file, tmp_path / "copy.skops")
    store.put(tmp_path / "copy.skops")
    assert first_column() == [1, 2, 3, 4]


def test_pipeline_is_refused_by_the_names_of_its_types_when_they_are_not_trusted(fit: Fit, tmp_path: Path) -> None:
    train = clouds()["train"]
    config = brought(tmp_path / "forest.skops", RandomForestClassifier(3).fit(train.inputs["features"], train.labels))
    with pytest.raises(StageError, match=r"forest\.skops.*sklearn\.tree\._tree\.Tree.*train\.trusted"):
        fit(clouds(), **config)
    with pytest.raises(StageError, match="not trusted: sklearn"):
        fit(clouds(), **config, trusted=["some.other.Type"])
    fit(clouds(), **config, trusted=["sklearn.tree._tree.Tree"]).raise_if_blocked()


@pytest.mark.parametrize(
    ("model", "words"),
    [({"no": "estimator"}, "holds a dict, not a scikit-learn estimator"), (LogisticRegression(), "is not fitted")],
)
def test_file_is_refused_when_it_holds_no_fitted_estimator(fit: Fit, tmp_path: Path, model: object, words: str) -> None:
    with pytest.raises(StageError, match=words):
        fit(clouds(), **brought(tmp_path / "other.skops", model))


def test_pipeline_is_refused_in_a_sentence_when_the_data_does_not_fit(fit: Fit, tmp_path: Path) -> None:
    train = clouds(features=4)["train"]
    model = LogisticRegression().fit(train.inputs["features"], train.labels)
    with pytest.raises(StageError, match=r"LogisticRegression does not take these samples: .*4 features"):
        fit(clouds(), **brought(tmp_path / "narrow.skops", model))


def test_label_is_the_answer_when_the_classes_are_texts_in_another_order(fit: Fit, tmp_path: Path) -> None:
    train = clouds()["train"]
    texts = np.array(["quince", "apple", "pear"])  # what the numbers 0, 1, 2 of the data mean
    model = LogisticRegression().fit(train.inputs["features"], texts[train.labels])
    config = brought(tmp_path / "texts.skops", model)
    assert fit(clouds(), tuple(texts), **config).facts.signature.primary_output == "label"
    in_order = LogisticRegression().fit(train.inputs["features"], np.array(NAMES)[train.labels])
    report = fit(clouds(), NAMES, **brought(tmp_path / "order.skops", in_order))
    assert report.facts.signature.primary_output == "probabilities"
    assert report.facts.signature.outputs[0].dtype == "str"


@pytest.mark.parametrize(
    ("classes", "labels", "message"),
    [
        (["cat", "dog", "eel"], ("0", "1", "2"), "labels 0, 1, 2 are none of the model's classes, cat, dog, eel. Fix"),
        ([1, 2, 3], ("0", "1", "2"), "labels 0 are none of the model's classes, 1, 2, 3. Fix: name the classes"),
        ([1, 2, 3], ("3", "1", "2"), "labels 0 are none of the model's classes, 1, 2, 3"),
    ],
)
def test_labels_that_are_none_of_the_classes_are_refused(
    fit: Fit, tmp_path: Path, classes: list[object], labels: tuple[str, ...], message: str
) -> None:
    train = clouds()["train"]
    model = LogisticRegression().fit(train.inputs["features"], np.array(classes)[train.labels])
    config = brought(tmp_path / "other.skops", model)
    with pytest.raises(StageError, match=message):
        fit(clouds(), labels, **config)
    report = fit(clouds(), tuple(map(str, classes)), **config)
    assert report.facts.signature.primary_output == "probabilities"


@pytest.mark.parametrize("dtype", [bool, float])
def test_classes_that_are_truth_values_or_floats_are_the_labels_of_their_numbers(
    fit: Fit, tmp_path: Path, dtype: type, workspace: Callable[..., Workspace]
) -> None:
    splits = clouds(classes=2)
    model = LogisticRegression().fit(splits["train"].inputs["features"], splits["train"].labels.astype(dtype))
    report = fit(splits, ("0", "1"), **brought(tmp_path / "m.skops", model))
    assert report.facts.signature.primary_output == "probabilities"
    assert Golden.load(workspace().path(report.artifacts["golden"])).test_outputs["label"].dtype == np.int64


@pytest.mark.parametrize("classes", [3, 4])
def test_label_is_the_answer_when_the_scores_are_those_of_pairs(fit: Fit, tmp_path: Path, classes: int) -> None:
    splits = clouds(classes)
    model = make_pipeline(StandardScaler(), SVC(decision_function_shape="ovo"))
    model.fit(splits["train"].inputs["features"], splits["train"].labels)
    config = brought(tmp_path / "pairs.skops", model)
    report = fit(splits, tuple(map(str, range(classes))), **config)
    assert report.facts.signature.primary_output == "label"
    assert sklearn_estimator.loaded(model, 0).class_count == classes


def test_classes_of_the_model_become_the_labels_when_the_data_has_none(fit: Fit, tmp_path: Path) -> None:
    train = clouds()["train"]
    model = LogisticRegression().fit(train.inputs["features"], np.array(NAMES)[train.labels])
    bare = {name: ArraySplit(split.inputs) for name, split in clouds().items()}
    report = fit(bare, (), **brought(tmp_path / "texts.skops", model))
    assert report.facts.signature.labels == NAMES
    assert "predictions" not in report.artifacts


def test_regressor_is_taken_without_labels_and_refused_with_them(fit: Fit, tmp_path: Path) -> None:
    train = clouds()["train"]
    config = brought(tmp_path / "ridge.skops", Ridge().fit(train.inputs["features"], train.labels))
    bare = {name: ArraySplit(split.inputs) for name, split in clouds().items()}
    signature = fit(bare, (), **config).facts.signature
    expected = (None, "variable", ("batch", 1))
    assert (signature.primary_output, signature.outputs[0].name, signature.outputs[0].shape) == expected
    with pytest.raises(StageError, match="names no classes, but the data has labels"):
        fit(clouds(), **config)


def test_check_fails_when_answers_are_not_finite(fit: Fit, tmp_path: Path) -> None:
    train = clouds()["train"]
    model = Ridge().fit(train.inputs["features"], train.labels)
    model.coef_ = np.full_like(model.coef_, np.inf)
    bare = {name: ArraySplit(split.inputs) for name, split in clouds().items()}
    some, none = fit(bare, (), **brought(tmp_path / "broken.skops", model)).failures
    assert (some.name, some.value) == ("train.non_finite_outputs", SIZES["test"])
    assert "'variable'" in some.detail
    assert none.name == "train.never_finite_outputs"


def test_answer_is_the_output_that_is_named_when_there_is_one(fit: Fit, tmp_path: Path) -> None:
    train = clouds()["train"]
    config = brought(tmp_path / "mine.skops", LogisticRegression().fit(train.inputs["features"], train.labels))
    assert fit(clouds(), **config, primary_output="label").facts.signature.primary_output == "label"
    with pytest.raises(StageError, match=r"train\.primary_output: the model has no output 'odds'; it has \['label'"):
        fit(clouds(), **config, primary_output="odds")


@pytest.mark.parametrize("name", ["m.pkl", "m.joblib"])
def test_pickle_is_refused_with_the_line_that_saves_it_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    joblib.dump(LogisticRegression().fit([[0.0], [1.0]], [0, 1]), tmp_path / name)
    assert is_model(str(tmp_path / name))
    with pytest.raises(ConfigError, match="reading a pickle runs the code") as raised:
        kind_of(tmp_path / name)
    line = str(raised.value).partition("save it anew: ")[2]
    exec(line, {"skops": skops, "joblib": joblib})  # it works as it stands
    assert kind_of(tmp_path / "m.skops") == "sklearn-model"


RNG = np.random.default_rng(0)
INPUTS = RNG.standard_normal((60, 4)).astype(np.float32)
LABELS = np.arange(60) % 3


def pipeline():
    return make_pipeline(StandardScaler(), LogisticRegression()).fit(INPUTS, LABELS)


def test_saved_model_has_the_same_bytes_and_answers_when_saved_again(tmp_path: Path) -> None:
    source.save(tmp_path / "a.skops", pipeline())
    ballast = [object() for _ in range(1000)]  # other addresses in memory
    source.save(tmp_path / "b.skops", pipeline())
    assert (tmp_path / "a.skops").read_bytes() == (tmp_path / "b.skops").read_bytes()
    loaded = source.load(tmp_path / "a.skops", ())
    assert np.array_equal(loaded.predict_proba(INPUTS), pipeline().predict_proba(INPUTS))
    assert len(ballast) == 1000


def test_saved_model_is_told_as_a_skops_file_when_others_read_it(tmp_path: Path) -> None:
    source.save(tmp_path / "model.skops", pipeline())
    assert np.array_equal(skops.io.load(tmp_path / "model.skops").predict(INPUTS), pipeline().predict(INPUTS))
    with zipfile.ZipFile(tmp_path / "model.skops") as archive:
        assert not [name for name in archive.namelist() if "pkl" in name or "pickle" in name]


@pytest.mark.parametrize("damage", ["missing", "text", "zip", "cut"])
def test_load_says_what_is_wrong_when_the_file_is_broken(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "model.skops"
    if damage == "text":
        path.write_text("no archive")
    if damage == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("other.txt", "nothing of the kind")
    if damage == "cut":
        source.save(path, pipeline())
        path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(StageError, match="not a skops file that can be read here"):
        source.load(path, ())


def test_description_names_every_part_when_estimators_are_nested() -> None:
    from sklearn.calibration import CalibratedClassifierCV
    from sklearn.svm import SVC

    model = make_pipeline(StandardScaler(), "passthrough", CalibratedClassifierCV(SVC()))
    assert source.describe(model) == "StandardScaler + CalibratedClassifierCV(SVC)"
    assert type(last_step(make_pipeline(StandardScaler(), model))).__name__ == "CalibratedClassifierCV"


def test_answers_have_one_score_a_class_when_there_are_two_classes() -> None:
    from sklearn.svm import SVC

    found = source.predict(SVC().fit(INPUTS, LABELS > 0), INPUTS)
    assert found["scores"].shape == (60, 2)
    assert np.array_equal(found["scores"].argmax(1), found["label"])
    assert {name: array.dtype.name for name, array in found.items()} == {"label": "int64", "scores": "float32"}


def test_answers_are_refused_when_the_estimator_gives_several_labels() -> None:
    from sklearn.linear_model import RidgeClassifier

    many = RidgeClassifier().fit(INPUTS, np.stack([LABELS > 0, LABELS > 1], axis=1))
    with pytest.raises(StageError, match="several labels per sample"):
        source.predict(many, INPUTS)


def test_answers_are_dense_when_a_transformer_gives_a_sparse_matrix() -> None:
    from scipy.sparse import csr_matrix

    found = source.predict(FunctionTransformer(csr_matrix).fit(INPUTS), INPUTS)
    assert np.array_equal(found["variable"], INPUTS)
