"""Classifiers and regressors of LightGBM and XGBoost, in the libraries' own files: numbers, and no code."""

import json
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from gauntlet.core.arrays import Array, NamedArrays
from gauntlet.core.errors import StageError, one_line

LABEL, PROBABILITIES, VARIABLE = "label", "probabilities", "variable"
LIGHTGBM_VALUES = ("regression", "regression_l1", "huber", "fair", "quantile", "mape")
XGBOOST_VALUES = ("reg:squarederror", "reg:absoluteerror", "reg:pseudohubererror")
"""Objectives of regressors whose values are the sums of their trees."""
NUMBERS = re.compile(r"^(?P<key>\w+)=(?P<values>.*)$", re.MULTILINE)
ZERO_IS_MISSING = 1
"""How LightGBM stores, in bits 2 and 3 of a split's decision type, that it takes 0 for a missing value."""


@dataclass(frozen=True)
class BoostedTrees(ABC):
    """A fitted classifier or regressor of one vector per sample, where NaN is a missing value."""

    booster: Any
    library: ClassVar[str]
    suffixes: ClassVar[tuple[str, ...]]

    @property
    @abstractmethod
    def features(self) -> int:
        """The length of a sample's vector."""

    @property
    @abstractmethod
    def classes(self) -> int:
        """The number of classes, at least 2; 1 for a regressor."""

    @property
    @abstractmethod
    def leaves(self) -> list[int]:
        """The number of leaves of each tree."""

    @property
    @abstractmethod
    def version(self) -> str:
        """The library and its version."""

    @abstractmethod
    def scores(self, inputs: Array) -> Array:
        """Return the results for float32 vectors.

        These are probabilities, shape (n, classes), or (n,) of the second of two classes; or values, shape (n,).
        """

    @abstractmethod
    def save(self, path: Path) -> None:
        """Write the library's own file."""

    @abstractmethod
    def unsupported(self) -> str | None:
        """Return what onnxmltools converts wrongly without saying so, or None."""

    def predict(self, inputs: Array) -> NamedArrays:
        """Return the outputs of the ONNX model: `label`, int64 (n,), and `probabilities`, float32 (n, classes).

        A regressor has `variable`, float32 (n, 1).
        """
        scores = np.asarray(self.scores(np.ascontiguousarray(inputs, np.float32)))
        if self.classes == 1:
            return {VARIABLE: scores.reshape(-1, 1).astype(np.float32)}
        if scores.ndim == 1:
            scores = np.stack([1 - scores, scores], axis=1)
        return {LABEL: scores.argmax(1).astype(np.int64), PROBABILITIES: scores.astype(np.float32)}


class LightGbm(BoostedTrees):
    """A `lightgbm.Booster`."""

    library = "lightgbm"
    suffixes = (".txt",)

    @classmethod
    def read(cls, path: Path) -> "LightGbm":
        """Read what `Booster.save_model` wrote; raise ValueError for another objective."""
        import lightgbm

        text = path.read_text("utf-8")
        if not text.startswith("tree"):  # LightGBM would write to standard output, too
            raise ValueError("the first line is not 'tree'")
        booster = lightgbm.Booster(model_str=text)
        model = cls(booster)
        known = ("binary", "multiclass", *LIGHTGBM_VALUES)
        if model._objective.split()[0] not in known or "sqrt" in model._objective.split():
            raise ValueError(f"its objective is {model._objective}; expected one of {', '.join(known)}")
        return model

    @property
    def _objective(self) -> str:
        return (_values(self.text, "objective") or ["none"])[0]

    @property
    def text(self) -> str:
        """The file's content."""
        return str(self.booster.model_to_string())

    @property
    def features(self) -> int:
        """The length of a sample's vector."""
        return int(self.booster.num_feature())

    @property
    def classes(self) -> int:
        """The number of classes, or 1."""
        regressor = self._objective.split()[0] in LIGHTGBM_VALUES
        return 1 if regressor else max(2, int(self.booster.num_model_per_iteration()))

    @property
    def leaves(self) -> list[int]:
        """The number of leaves of each tree."""
        return [int(value) for value in _values(self.text, "num_leaves")]

    @property
    def version(self) -> str:
        """The library and its version."""
        import lightgbm

        return f"LightGBM {lightgbm.__version__}"

    def scores(self, inputs: Array) -> Array:
        """Return the probabilities, or the values."""
        return np.asarray(self.booster.predict(inputs))

    def save(self, path: Path) -> None:
        """Write a text file."""
        path.write_text(self.text, "utf-8")

    def unsupported(self) -> str | None:
        """Name linear leaves, averaged trees, another sigmoid, and zeros that are missing values."""
        text = self.text
        if (sigmoid := re.search(r"^objective=binary sigmoid:(.*)$", text, re.MULTILINE)) and float(sigmoid[1]) != 1:
            return f"a sigmoid of another slope (sigmoid: {sigmoid[1]})"
        if "1" in _values(text, "is_linear"):
            return "linear models in its leaves (linear_tree)"
        if re.search(r"^average_output$", text, re.MULTILINE):
            return "averaged trees (boosting: rf)"
        kinds = " ".join(_values(text, "decision_type")).split()
        if any(int(kind) >> 2 & 3 == ZERO_IS_MISSING for kind in kinds):
            return "zeros that are missing values (zero_as_missing)"
        return None

    def with_float32_thresholds(self) -> "LightGbm":
        """Return the classifier with thresholds that float32 can hold, and the same predictions for float32 samples.

        A float32 value is at most a threshold exactly if it is at most the largest float32 value up to it. An exporter
        rounds to the nearest one, which moves samples to the other side of a split where that lies above.
        """
        import lightgbm

        def rounded(line: re.Match[str]) -> str:
            if line["key"] != "threshold":
                return line[0]
            exact = np.array(line["values"].split(), np.float64)
            nearest = exact.astype(np.float32)
            down = np.where(nearest > exact, np.nextafter(nearest, np.float32(-np.inf)), nearest)
            return f"threshold={' '.join(repr(float(value)) for value in down)}"

        # The text says how many characters each tree has; without that line, LightGBM reads them one after the other.
        text = re.sub(r"^tree_sizes=.*\n", "", NUMBERS.sub(rounded, self.text), flags=re.MULTILINE)
        return LightGbm(lightgbm.Booster(model_str=text))


class XgBoost(BoostedTrees):
    """An `xgboost.Booster`."""

    library = "xgboost"
    suffixes = (".json", ".ubj")

    @classmethod
    def read(cls, path: Path) -> "XgBoost":
        """Read what `save_model` wrote, up to its best round; raise ValueError for another objective."""
        import xgboost

        booster = xgboost.Booster(model_file=path)
        return cls.of(booster)

    @classmethod
    def of(cls, booster: Any) -> "XgBoost":
        """Return a model without the rounds after its best one, which XGBoost keeps, and without feature names."""
        best = booster.attr("best_iteration")
        classifier = cls(booster if best is None else booster[: int(best) + 1])
        classifier.booster.feature_names = None
        objective, kind = (classifier._learner[part]["name"] for part in ("objective", "gradient_booster"))
        if kind == "gblinear":
            raise ValueError("it is linear (booster: gblinear) and has no trees")
        known = ("binary:logistic", "multi:softprob", *XGBOOST_VALUES)
        targets = int(classifier._learner["learner_model_param"].get("num_target", 1))
        if objective not in known or targets > 1:
            what = f"it has {targets} targets" if targets > 1 else f"its objective is {objective}"
            raise ValueError(f"{what}; expected one target and one of {', '.join(known)}")
        return classifier

    @property
    def _learner(self) -> dict[str, Any]:
        learner: dict[str, Any] = json.loads(self.booster.save_raw("json"))["learner"]
        return learner

    @property
    def features(self) -> int:
        """The length of a sample's vector."""
        return int(self.booster.num_features())

    @property
    def classes(self) -> int:
        """The number of classes, or 1."""
        learner = self._learner
        regressor = learner["objective"]["name"] in XGBOOST_VALUES
        return 1 if regressor else max(2, int(learner["learner_model_param"]["num_class"]))

    @property
    def leaves(self) -> list[int]:
        """The number of leaves of each tree."""
        return [tree.count("leaf=") for tree in self.booster.get_dump()]

    @property
    def version(self) -> str:
        """The library and its version."""
        import xgboost

        return f"XGBoost {xgboost.__version__}"

    def scores(self, inputs: Array) -> Array:
        """Return the probabilities, or the values."""
        return np.asarray(self.booster.inplace_predict(inputs, validate_features=False))

    def save(self, path: Path) -> None:
        """Write a JSON file, or a UBJSON file if the suffix says so."""
        self.booster.save_model(path)

    def unsupported(self) -> str | None:
        """Name boosters that are no plain sum of trees, forests of several classes, and splits of categories."""
        kind = self._learner["gradient_booster"]["name"]
        if kind != "gbtree":
            return f"the booster {kind}"
        model = self._learner["gradient_booster"]["model"]
        trees, parallel = model["trees"], int(model["gbtree_model_param"]["num_parallel_tree"])
        if parallel > 1 and self.classes > 2:
            return f"several trees for each class in a round (num_parallel_tree: {parallel})"
        return "splits of categories" if any(1 in tree["split_type"] for tree in trees) else None


LIBRARIES: tuple[type[LightGbm | XgBoost], ...] = (LightGbm, XgBoost)


def load(path: Path) -> LightGbm | XgBoost:
    """Read a model; the suffix names the library. Raise StageError if it is none of a known library."""
    for library in LIBRARIES:
        if path.suffix in library.suffixes:
            try:
                return library.read(path)
            except Exception as error:  # each library has errors of its own
                raise StageError(
                    f"{path}: not a model that can be taken as {library.library} saved it with save_model: "
                    f"{one_line(error)}. Fix: train it for another objective, or provide it as ONNX"
                ) from error
    known = "; ".join(f"{', '.join(library.suffixes)} for {library.library}" for library in LIBRARIES)
    raise StageError(f"{path}: the suffix names the library: {known}. Fix: save it with the booster's save_model")


def _values(text: str, key: str) -> list[str]:
    return [line["values"] for line in NUMBERS.finditer(text) if line["key"] == key]
