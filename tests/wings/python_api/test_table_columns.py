"""A model that was fitted on a table takes the columns of another one by name, in the order of its fit."""

from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest

from gauntlet.core.artifact import Store
from gauntlet.core.errors import ConfigError
from wings.python_api.objects import samples_file

X = pd.DataFrame(np.random.default_rng(0).random((60, 3)), columns=["leaf width", "leaf length", "age"])
Y = (X["leaf width"] > X["age"]).astype(int)


@pytest.fixture(params=["logistic.skops", "trees.txt", "trees.json", "trees.ubj"])
def model(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    path = tmp_path / request.param
    if path.suffix == ".skops":
        skops, linear = pytest.importorskip("skops.io"), pytest.importorskip("sklearn.linear_model")
        skops.dump(linear.LogisticRegression().fit(X, Y), path)
    elif path.suffix == ".txt":
        lightgbm = pytest.importorskip("lightgbm")
        lightgbm.LGBMClassifier(n_estimators=2, verbose=-1).fit(X, Y).booster_.save_model(path)
    else:
        xgboost = pytest.importorskip("xgboost")
        xgboost.XGBClassifier(n_estimators=2).fit(X, Y).get_booster().save_model(path)
    return str(path)


def stored(table: pd.DataFrame, model: str, folder: Path) -> dict[str, Any]:
    table.to_csv(folder / "table.csv", index=False)
    file = samples_file(folder / "table.csv", model, Store(folder / "store"))
    assert file is not None
    with np.load(file) as arrays:
        return {name: arrays[name] for name in arrays.files}


def test_columns_are_put_in_order_and_others_are_left_out(model: str, tmp_path: Path) -> None:
    table = X[X.columns[::-1]].assign(id=range(60), target=Y)
    arrays = stored(table, model, tmp_path)
    np.testing.assert_allclose(arrays["input"], X.to_numpy())
    assert arrays["labels"].tolist() == Y.tolist()


def test_table_without_a_column_of_the_fit_is_refused(model: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no column 'age', on which the model was fitted"):
        stored(X.drop(columns="age"), model, tmp_path)


def test_table_with_other_names_is_taken_in_its_own_order(model: str, tmp_path: Path) -> None:
    arrays = stored(X.set_axis(["one", "two", "three"], axis=1), model, tmp_path)
    np.testing.assert_allclose(arrays["input"], X.to_numpy())


def test_table_beside_its_labels_is_put_in_order_too(model: str, tmp_path: Path) -> None:
    file = samples_file((X[X.columns[::-1]], Y), model, Store(tmp_path / "store"))
    assert file is not None
    np.testing.assert_allclose(np.load(file)["input"], X.to_numpy())


def test_table_without_rows_is_refused(model: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"table\.csv has no samples"):
        stored(X[:0], model, tmp_path)


@pytest.mark.parametrize(("option", "key"), [("group", "split_groups"), ("time", "split_times")])
def test_column_that_splits_is_no_input(model: str, tmp_path: Path, option: str, key: str) -> None:
    days = pd.date_range("2026-01-01", periods=60)
    X.assign(day=days, target=Y).to_parquet(tmp_path / "table.parquet")
    file = samples_file(tmp_path / "table.parquet", model, Store(tmp_path / "store"), **cast(Any, {option: "day"}))
    with np.load(str(file)) as arrays:
        assert {*arrays.files} == {"input", "labels", key}
        assert arrays[key][1].startswith("2026-01-02T00:00")
    with pytest.raises(ConfigError, match="no column 'week' to split by; found: leaf width, leaf length, age, day"):
        samples_file(tmp_path / "table.parquet", model, Store(tmp_path / "store"), **cast(Any, {option: "week"}))


def test_column_that_splits_stays_an_input_where_the_model_was_fitted_on_it(model: str, tmp_path: Path) -> None:
    X.assign(target=Y).to_csv(tmp_path / "table.csv", index=False)
    file = samples_file(tmp_path / "table.csv", model, Store(tmp_path / "store"), time="age")
    with np.load(str(file)) as arrays:
        assert arrays["input"].shape == (60, 3)
        assert arrays["split_times"].tolist() == X["age"].tolist()
    with pytest.raises(ConfigError, match="--time: random samples has no columns"):
        samples_file(None, model, Store(tmp_path / "store"), time="age")
