"""Files of scikit-learn models: without pickle, the same bytes for the same model, and nothing untrusted made."""

import zipfile
from pathlib import Path

import numpy as np
import pytest
import skops.io
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

from frameworks.sklearn import estimator as source
from frameworks.sklearn.labels import last_step
from gauntlet.core.errors import StageError

RNG = np.random.default_rng(0)
INPUTS = RNG.standard_normal((60, 4)).astype(np.float32)
LABELS = np.arange(60) % 3
TREE = "sklearn.tree._tree.Tree"


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


def test_load_refuses_types_by_name_when_nobody_trusts_them(tmp_path: Path) -> None:
    path = tmp_path / "forest.skops"
    skops.io.dump(RandomForestClassifier(3).fit(INPUTS, LABELS), path)
    with pytest.raises(StageError, match=rf"not trusted: {TREE}.*name them in train\.trusted"):
        source.load(path, ())
    with pytest.raises(StageError, match=TREE):
        source.load(path, ("some.other.Type",))
    assert source.load(path, (TREE,)).predict(INPUTS).shape == (60,)
    assert source.load(path, None).predict(INPUTS).shape == (60,)


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
