"""Gradient-boosted trees of LightGBM or XGBoost: trained here, or brought in the library's own file."""

from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from frameworks.boosting.trees import PROBABILITIES, RANKINGS, VARIABLE, LightGbm, XgBoost, load
from frameworks.input_sizes import outputs_of
from frameworks.loaded_model import BroughtFile
from frameworks.session import LoadedModel
from frameworks.training_data import read_vectors, require_all_classes, require_vectors, single_input
from gauntlet.core.arrays import NamedArrays
from gauntlet.core.artifact import Store
from gauntlet.core.errors import StageError, one_line
from gauntlet.core.kinds import kinds
from gauntlet.core.report import Report
from gauntlet.core.signature import Signature
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.golden import record_golden
from gauntlet.datasets.splits import Splits, require_labels
from gauntlet.datasets.splitting import GROUPS
from gauntlet.frameworks.training import require_labelled, splits_to_score
from gauntlet.runtime.resources import usable_threads
from tasks.train.base import Training
from tasks.train.facts import TrainFacts, report_model

Samples = tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]
"""Vectors, shape (n, features), and classes, shape (n,)."""
PACKAGES = {"lightgbm": "boosting", "xgboost": "boosting"}


class BoostingTraining(Training):
    """Train gradient-boosted trees on vectors, where NaN is a missing value. Trees grow leaf by leaf.

    LightGBM: Ke et al., NeurIPS 2017. XGBoost: Chen and Guestrin, KDD 2016.
    """

    kind: Literal["boosting"] = "boosting"
    library: Literal["lightgbm", "xgboost"] = "lightgbm"
    rounds: int = Field(
        200, ge=1, le=100_000, description="at most; each adds a tree, or one a class if there are more"
    )
    patience: int = Field(10, ge=1, description="stop after this many rounds without a lower validation loss")
    max_leaves: int = Field(31, ge=2, le=4096, description="of a tree")
    learning_rate: float = Field(0.1, gt=0, le=1)

    packages: ClassVar[dict[str, str]] = PACKAGES
    from_scratch: ClassVar[bool] = True

    def fit(self, splits: Splits, signature: Signature, workspace: Workspace) -> Report[TrainFacts]:
        """Train on the training split, which must fit into memory, and keep the best round. See `tasks.train.train`."""
        data, name = require_labelled(splits, "train", "validation", "test"), single_input(signature)
        require_vectors(signature, self.kind)
        require_all_classes(data["train"], signature)
        train, validation = (
            (read_vectors(data[part], name), require_labels(data[part])) for part in ("train", "validation")
        )
        fit = self._fit_lightgbm if self.library == "lightgbm" else self._fit_xgboost
        try:
            model = fit(train, validation, len(signature.labels))
        except Exception as error:  # each library has errors of its own
            raise StageError(f"{self.library} cannot train on this data: {one_line(error)}") from error
        path = workspace.folder / f"model{model.suffixes[0]}"
        model.save(path)
        return report_boosted(load(path), path, data, signature, workspace)

    def _fit_lightgbm(self, train: Samples, validation: Samples, classes: int) -> LightGbm:
        import lightgbm

        kind: dict[str, Any] = {"objective": "binary"}
        if classes > 2:
            kind = {"objective": "multiclass", "num_class": classes}
        settings = kind | {
            "num_leaves": self.max_leaves,
            "learning_rate": self.learning_rate,
            "deterministic": True,
            "force_row_wise": True,
            "num_threads": usable_threads(),
            "verbosity": -1,
        }
        first = lightgbm.Dataset(train[0], train[1], params={"verbosity": -1})
        stopping = lightgbm.early_stopping(self.patience, verbose=False)
        judged = [lightgbm.Dataset(validation[0], validation[1], reference=first)]
        return LightGbm(lightgbm.train(settings, first, self.rounds, valid_sets=judged, callbacks=[stopping]))

    def _fit_xgboost(self, train: Samples, validation: Samples, classes: int) -> XgBoost:
        import xgboost

        kind: dict[str, Any] = {"objective": "binary:logistic"}
        if classes > 2:
            kind = {"objective": "multi:softprob", "num_class": classes}
        settings = kind | {
            "grow_policy": "lossguide",
            "max_depth": 0,  # no limit
            "max_leaves": self.max_leaves,
            "eta": self.learning_rate,
            "nthread": usable_threads(),
            "verbosity": 0,
        }
        booster = xgboost.train(
            settings,
            xgboost.DMatrix(*train),
            self.rounds,
            evals=[(xgboost.DMatrix(*validation), "validation")],
            early_stopping_rounds=self.patience,
            verbose_eval=False,
        )
        return XgBoost.of(booster)


class BoostingModel(BroughtFile):
    """Load a classifier or regressor that `Booster.save_model` wrote: LightGBM's text, or XGBoost's JSON or UBJSON."""

    kind: Literal["boosting-model"] = "boosting-model"
    model: Path = Field(description="the file: .txt of LightGBM, .json or .ubj of XGBoost")

    packages: ClassVar[dict[str, str]] = PACKAGES
    finds_prediction: ClassVar[bool] = True

    @classmethod
    def as_taken(cls, samples: NamedArrays, layout: str) -> NamedArrays:
        """Return the samples; raise `StageError` for columns of texts, whose numbers the file does not need to hold."""
        if texts := [name for name, array in samples.items() if array.dtype.kind == "U"]:
            column = texts[0]
            raise StageError(
                f"column {column!r} holds texts, such as {str(samples[column][0])!r}; trees take the numbers of "
                f"categories. Fix: write them as they were in the training, for example "
                f"table[{column!r}].astype('category').cat.codes, where no category is missing"
            )
        return samples

    def load_model(self, store: Store) -> LoadedModel:
        """Return the classifier as a model of one input; raise StageError if it cannot be read."""
        model = load(self.model)

        def call(inputs: NamedArrays) -> NamedArrays:
            (vectors,) = inputs.values()
            return model.predict(vectors)

        trees, values = _size_of(model)
        if model.classes == 1:
            ranks = model.objective in RANKINGS and "ranking" in kinds("problem")
            return LoadedModel(model.version, trees, values, call, task="ranking" if ranks else "regression")
        return LoadedModel(model.version, trees, values, call, class_count=model.classes)

    def fit(self, splits: Splits, signature: Signature, workspace: Workspace) -> Report[TrainFacts]:
        """Load the classifier and record its golden outputs. See `tasks.train.train`."""
        scored = splits_to_score(splits)
        single_input(signature)
        require_vectors(signature, self.kind)
        model = load(self.model)
        path = workspace.folder / f"model{self.model.suffix}"
        model.save(path)
        signature = signature.replace(columns=fitted_columns(self.model, trust=True))
        return report_boosted(model, path, scored, signature, workspace)


def fitted_columns(path: Path, trust: bool) -> tuple[str, ...]:
    """Return the columns of the table that trees were fitted on; see `Framework.columns`."""
    try:
        if path.suffix.lower() == ".txt":
            import lightgbm

            return tuple(lightgbm.Booster(model_file=path).feature_name())
        import xgboost

        return tuple(xgboost.Booster(model_file=path).feature_names or ())
    except Exception:  # each library has errors of its own; loading the model says why
        return ()


def report_boosted(
    model: LightGbm | XgBoost, path: Path, splits: Splits, signature: Signature, workspace: Workspace
) -> Report[TrainFacts]:
    """Record the golden outputs of a fitted model; raise StageError if the data does not fit it.

    `splits` are those to predict, `test` among them.
    """
    spec = signature.inputs[0]
    if spec.shape[1:] != (model.features,):
        raise StageError(f"{path.name}: takes vectors of {model.features} values; the data has {spec.shape[1]}")
    regressor = model.classes == 1
    if not regressor and signature.labels and len(signature.labels) != model.classes:
        raise StageError(f"{path.name}: knows {model.classes} classes; the data has {len(signature.labels)}")

    def predict(inputs: NamedArrays) -> NamedArrays:
        return model.predict(inputs[spec.name])

    # Far from the training data, outputs mean nothing: random features must be observed values.
    golden = record_golden(predict, splits["test"], observed_values_only=True)
    ranks = signature.task == "ranking"
    if golden.labels is not None and model.objective in RANKINGS and not ranks:
        raise StageError(
            f"{path.name}: a ranker ({model.objective}): only the order of its scores within a group means anything, "
            "and the labels would be taken for values. Fix: remove the labels, or set data.task: ranking and name the "
            f"group of each sample ({GROUPS})"
        )
    if regressor and golden.labels is not None and signature.task != "regression" and not ranks:
        raise StageError(f"{path.name}: a regressor, and the data's labels are classes. Fix: set data.task: regression")
    classes = () if regressor else tuple(str(number) for number in range(model.classes))
    signature = signature.replace(
        inputs=(spec.replace(dtype="float32"),),
        outputs=outputs_of(golden),
        primary_output=VARIABLE if regressor else PROBABILITIES,
        labels=signature.labels or classes,
    )
    trees, values = _size_of(model)
    facts = TrainFacts(framework=model.version, architecture=trees, parameters=values, signature=signature)
    return report_model(facts, golden, predict, splits, workspace, path)


def _size_of(model: LightGbm | XgBoost) -> tuple[str, int]:
    """Return the trees in words, and how many numbers they hold: a value a leaf, and a threshold a split."""
    leaves = model.leaves
    if not leaves:
        return "linear", model.features + 1
    return f"{len(leaves)} trees of at most {max(leaves)} leaves", 2 * sum(leaves) - len(leaves)
