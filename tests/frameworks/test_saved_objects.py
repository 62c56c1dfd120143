"""A model that Python holds is saved by its framework, and is then brought as its file is."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from configs.brought_model import infer_config
from gauntlet.core.artifact import Store
from gauntlet.core.errors import ConfigError
from wings.python_api.objects import model_file, samples_file

X = np.random.default_rng(0).standard_normal((40, 6)).astype(np.float32)
Y = np.arange(40) % 4


def torch_module() -> Any:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Dropout(), torch.nn.ReLU(), torch.nn.Linear(8, 4))


def torch_program() -> Any:
    torch = pytest.importorskip("torch")
    axes = ({0: torch.export.Dim("batch")},)
    return torch.export.export(torch_module().eval(), (torch.from_numpy(X[:2]),), dynamic_shapes=axes)


def keras_model() -> Any:
    pytest.importorskip("tensorflow")
    from frameworks.keras.tensorflow_setup import start_tensorflow

    keras = start_tensorflow()
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [keras.Input((6,)), keras.layers.Dense(4, activation="softmax", name="scores")], name="softmax"
    )


def sklearn_pipeline() -> Any:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), LogisticRegression()).fit(X, Y)


TREES = {"n_estimators": 2, "n_jobs": 1}
MODELS: dict[str, Callable[[], Any]] = {
    "torch module": torch_module,
    "torch program": torch_program,
    "scripted module": lambda: pytest.importorskip("torch").jit.script(torch_module().eval()),
    "keras": keras_model,
    "sklearn": sklearn_pipeline,
    "lightgbm": lambda: pytest.importorskip("lightgbm").LGBMClassifier(min_child_samples=2, **TREES).fit(X, Y),
    "xgboost": lambda: pytest.importorskip("xgboost").XGBClassifier(**TREES).fit(X, Y),
}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_model_is_saved_as_a_trusted_file_that_a_run_takes(store: Store, make: Callable[[], Any]) -> None:
    file = model_file(make(), X, store)
    data = samples_file((X, Y), file, store)
    assert data is not None
    inferred = infer_config(Path(file), Path(data), None, {}, store=store)
    assert inferred.notes["problem"] == "classification, 4 classes"
    assert inferred.notes["samples"].startswith("40 in")
    assert inferred.values["data"]["path"] == data


@pytest.mark.parametrize("make", [torch_module, keras_model, sklearn_pipeline], ids=lambda make: make.__name__)
def test_same_model_is_the_same_file(store: Store, make: Callable[[], Any]) -> None:
    model = make()
    assert model_file(model, X, store) == model_file(model, X, store)


def test_module_stays_as_it_is(store: Store) -> None:
    module = torch_module().train()
    model_file(module, X, store)
    assert module.training
    assert all(part.training for part in module.modules())


def test_inputs_of_a_module_are_taken_by_name_and_by_place(store: Store) -> None:
    torch = pytest.importorskip("torch")

    class Difference(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, first: Any, second: Any) -> Any:
            return first - second[:, :1]

    by_name = model_file(Difference(), {"second": X[:, :2], "first": X}, store)
    assert by_name == model_file(Difference(), (X, torch.from_numpy(X[:, :2])), store)
    data = samples_file({"second": X[:, :2], "first": X}, by_name, store)
    notes = infer_config(Path(by_name), Path(str(data)), None, {}, store=store).notes
    assert notes["input first"] == "float32 [batch, 6]"
    assert notes["input second"] == "float32 [batch, 2]"


def test_module_learns_its_shapes_from_a_file_of_samples(store: Store, tmp_path: Path) -> None:
    np.savez(tmp_path / "samples.npz", input=X, labels=Y)
    assert model_file(torch_module(), tmp_path / "samples.npz", store) == model_file(torch_module(), X, store)


@pytest.mark.parametrize("sample", [None, "images"])
def test_module_without_a_sample_asks_for_one(store: Store, sample: str | None) -> None:
    with pytest.raises(
        ConfigError, match=r"does not say the shapes of its inputs\. Fix: give some inputs, with sample="
    ):
        model_file(torch_module(), sample, store)


def test_module_that_cannot_be_captured_is_one_error(store: Store) -> None:
    with pytest.raises(ConfigError, match=r"Sequential: torch\.export cannot capture it on inputs of shape \(2, 5\)"):
        model_file(torch_module(), X[:, :5], store)


def test_trees_that_take_a_number_for_a_missing_value_are_refused(store: Store) -> None:
    """XGBoost's file does not say it, so the file would predict something else."""
    xgboost = pytest.importorskip("xgboost")
    with pytest.raises(ConfigError, match=r"takes 0\.0 for a missing value.*Fix: write NaN for 0\.0"):
        model_file(xgboost.XGBClassifier(missing=0.0, **TREES).fit(X, Y), X, store)
