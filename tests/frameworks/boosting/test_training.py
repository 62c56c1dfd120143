"""Boosted trees: trained here or brought in a file that cannot hold code, and refused in one sentence."""

from collections.abc import Callable
from pathlib import Path

import lightgbm
import numpy as np
import pytest
import xgboost
from gaussian_clusters import NAMES, clouds, signature_of

from configs.brought_model import infer_config, is_model, kind_of
from frameworks.boosting.training import BoostingModel, BoostingTraining
from frameworks.boosting.trees import load
from gauntlet.core.errors import ConfigError, StageError
from gauntlet.core.report import Report
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.splits import ArraySplit
from tasks.train.facts import TrainFacts

Make = Callable[..., Workspace]
Fit = Callable[..., Report[TrainFacts]]


@pytest.fixture
def fit(workspace: Make) -> Fit:
    def run(splits: dict[str, ArraySplit], labels: tuple[str, ...] = NAMES, **config: object) -> Report[TrainFacts]:
        return BoostingTraining.model_validate(config).fit(splits, signature_of(splits, labels), workspace())

    return run


@pytest.mark.parametrize("library", ["lightgbm", "xgboost"])
def test_trees_learn_and_sign_their_outputs(fit: Fit, workspace: Make, library: str) -> None:
    report = fit(clouds(), library=library)
    facts, signature = report.facts, report.facts.signature
    assert facts.framework.lower().startswith(library)
    assert facts.parameters > 0
    assert [(spec.name, spec.dtype, spec.shape) for spec in signature.outputs] == [
        ("label", "int64", ("batch",)),
        ("probabilities", "float32", ("batch", 3)),
    ]
    assert signature.primary_output == "probabilities"
    with np.load(workspace().path(report.artifacts["predictions"])) as file:
        assert np.mean(file["test"] == file["test_labels"]) > 0.8
        assert np.array_equal(file["test_scores"].argmax(1), file["test"])


@pytest.mark.parametrize("library", ["lightgbm", "xgboost"])
def test_rounds_end_when_the_validation_loss_does_not_fall(fit: Fit, library: str) -> None:
    few, many = (fit(clouds(), library=library, rounds=2000, patience=patience) for patience in (2, 40))
    rounds = [int(report.facts.architecture.split()[0]) / 3 for report in (few, many)]
    assert rounds[0] <= rounds[1] < 1000


@pytest.mark.parametrize("name", ["m.txt", "m.json", "m.ubj"])
def test_file_of_the_library_needs_no_configuration(fit: Fit, workspace: Make, tmp_path: Path, name: str) -> None:
    report = fit(clouds(), library="lightgbm" if name == "m.txt" else "xgboost", rounds=3)
    load(workspace().path(report.artifacts["model"])).save(tmp_path / name)
    np.savez(tmp_path / "data.npz", x=clouds()["test"].inputs["features"])
    assert is_model(str(tmp_path / name))
    inferred = infer_config(tmp_path / name, tmp_path / "data.npz", None, {})
    assert inferred.values["train"] == {"kind": "boosting-model", "model": str(tmp_path / name)}
    assert inferred.values["data"]["task"] == "classification"
    (tmp_path / name).write_text("notes")
    (tmp_path / "cat.cbm").write_bytes(b"CBM1")
    with pytest.raises(ConfigError, match=r"Fix: model.save_model..model.onnx., format=.onnx.."):
        kind_of(tmp_path / "cat.cbm")
    with pytest.raises(ConfigError, match="a file of no known kind"):
        kind_of(tmp_path / name)


def test_column_of_texts_is_refused_with_a_way_to_write_numbers(tmp_path: Path) -> None:
    lightgbm, pandas = pytest.importorskip("lightgbm"), pytest.importorskip("pandas")
    table = pandas.DataFrame({"age": np.arange(60.0), "city": pandas.Categorical(["rome", "oslo", "bern"] * 20)})
    fitted = lightgbm.LGBMRegressor(n_estimators=2, verbose=-1).fit(table, np.arange(60))
    fitted.booster_.save_model(tmp_path / "m.txt")
    samples = {name: column.to_numpy() for name, column in table.astype({"city": "str"}).items()}
    np.savez(tmp_path / "texts.npz", age=samples["age"], city=samples["city"].astype(str))
    with pytest.raises(ConfigError, match=r"m\.txt: column 'city' holds texts, such as 'rome'; .* Fix: .*cat\.codes"):
        infer_config(tmp_path / "m.txt", tmp_path / "texts.npz", None, {})


def test_model_of_several_targets_is_refused_with_a_way(tmp_path: Path) -> None:
    xgboost = pytest.importorskip("xgboost")
    x = np.random.default_rng(0).random((60, 2))
    xgboost.XGBRegressor(n_estimators=2).fit(x, x).save_model(tmp_path / "two.json")
    with pytest.raises(
        StageError, match=r"it has 2 targets; expected one\. Fix: fit and save a model for each of them$"
    ):
        load(tmp_path / "two.json")


def test_images_and_missing_classes_are_refused(fit: Fit) -> None:
    splits = {name: ArraySplit({"input": np.zeros((len(s), 3, 8, 8))}, s.labels) for name, s in clouds().items()}
    with pytest.raises(StageError, match=r"train.kind: boosting takes one vector per sample; .*\(3, 8, 8\).*data\.hog"):
        fit(splits)
    with pytest.raises(StageError, match="no sample of: medlar"):
        fit(clouds(), (*NAMES, "medlar"))


def test_file_is_refused_when_it_is_no_model_of_its_library(workspace: Make, tmp_path: Path) -> None:
    data = clouds()["train"]
    points, labels = data.take(slice(0, None))["features"], data.labels
    quiet = {"objective": "cross_entropy", "verbosity": -1}
    lightgbm.train(quiet, lightgbm.Dataset(points, labels > 0), 2).save_model(tmp_path / "counts.txt")
    counts = {"verbosity": 0, "objective": "survival:cox"}
    xgboost.train(counts, xgboost.DMatrix(points, labels), 2).save_model(tmp_path / "counts.json")
    (tmp_path / "broken.txt").write_text("hello")
    (tmp_path / "broken.ubj").write_bytes(b"hello")
    (tmp_path / "model.pkl").write_bytes(b"")
    for name, expected in {
        "counts.txt": "its objective is cross_entropy; expected one of binary, multiclass, regression",
        "counts.json": "its objective is survival:cox; expected one of binary:logistic, multi:softprob",
        "broken.txt": "as lightgbm saved it with save_model: the first line is not 'tree'",
        "broken.ubj": "not a model that can be taken as xgboost saved it with save_model",
        "gone.txt": "not a model that can be taken as lightgbm saved it with save_model: .*No such file",
        "model.pkl": "the suffix names the library: .txt for lightgbm; .json, .ubj for xgboost",
    }.items():
        with pytest.raises(StageError, match=expected):
            BoostingModel(model=tmp_path / name).fit(clouds(), signature_of(clouds()), workspace())


def test_classifier_is_refused_when_the_data_does_not_fit_it(fit: Fit, workspace: Make, tmp_path: Path) -> None:
    trained = fit(clouds(), library="lightgbm", rounds=3)
    (tmp_path / "m.txt").write_bytes(workspace().path(trained.artifacts["model"]).read_bytes())
    model = BoostingModel(model=tmp_path / "m.txt")
    with pytest.raises(StageError, match="takes vectors of 6 values; the data has 4"):
        model.fit(clouds(features=4), signature_of(clouds(features=4)), workspace())
    with pytest.raises(StageError, match="knows 3 classes; the data has 2"):
        model.fit(clouds(2), signature_of(clouds(2), NAMES[:2]), workspace())
