"""scikit-learn training: a support vector machine on vectors, and the report shared with pretrained estimators."""

from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field, PositiveFloat

from frameworks.input_sizes import outputs_of
from frameworks.sklearn import estimator as sklearn_estimator
from frameworks.sklearn.estimator import estimator_inputs, load
from frameworks.sklearn.labels import label_count
from frameworks.training_data import read_vectors, require_all_classes, require_vectors, single_input
from gauntlet.core.arrays import Array, NamedArrays
from gauntlet.core.errors import StageError
from gauntlet.core.report import Check, Report
from gauntlet.core.signature import Signature
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.golden import Golden, record_golden
from gauntlet.datasets.splits import Splits, require_labels
from gauntlet.datasets.truth import class_indices
from gauntlet.frameworks.training import require_labelled
from gauntlet.onnx_model.recognition import Operators
from tasks.train.base import Training
from tasks.train.facts import TrainFacts, find_primary_output, report_model

PACKAGES = {"skops": "sklearn"}
FOLDS = 5
"""Of the cross-validation that fits the probabilities."""


class SklearnTraining(Training):
    """Train StandardScaler and one SVC per class, with probabilities.

    Each class's score goes through a sigmoid fitted by cross-validation (Platt, 1999), as scikit-learn 1.9 recommends
    over `SVC(probability=True)`. One machine per class rather than per pair of classes, because the votes of the pairs
    jump where a rounding error moves a sample across a boundary: an exported model could not reproduce them.
    """

    kind: Literal["sklearn"] = "sklearn"
    operators: ClassVar[Operators] = "matrices"
    C: float = Field(10.0, gt=0, description="cost of a misclassified training sample; larger fits more closely")
    gamma: Literal["scale", "auto"] | PositiveFloat = Field("scale", description="kernel coefficient of the SVC")
    kernel: Literal["rbf", "linear", "poly", "sigmoid"] = "rbf"
    seed: int = Field(0, ge=0, description="of the folds")

    packages: ClassVar[dict[str, str]] = PACKAGES
    from_scratch: ClassVar[bool] = True

    def fit(self, splits: Splits, signature: Signature, workspace: Workspace) -> Report[TrainFacts]:
        """Train on the training split, which must fit into memory. See `tasks.train.train`."""
        data, name = require_labelled(splits, "train", "validation", "test"), single_input(signature)
        require_vectors(signature, self.kind)
        require_all_classes(data["train"], signature)
        inputs, labels = read_vectors(data["train"], name), require_labels(data["train"])
        model = self._untrained()
        try:
            model.fit(inputs, labels)
        except ValueError as error:
            raise StageError(f"scikit-learn cannot train on this data: {error}") from error
        path = workspace.folder / "model.skops"
        sklearn_estimator.save(path, model)
        return report_estimator(model, path, data, signature, workspace)

    def _untrained(self) -> Any:
        from sklearn.calibration import CalibratedClassifierCV
        from sklearn.model_selection import StratifiedKFold
        from sklearn.multiclass import OneVsRestClassifier
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler
        from sklearn.svm import SVC

        machines = OneVsRestClassifier(SVC(C=self.C, gamma=self.gamma, kernel=self.kernel))
        folds = StratifiedKFold(FOLDS, shuffle=True, random_state=self.seed)
        return make_pipeline(StandardScaler(), CalibratedClassifierCV(machines, ensemble=False, cv=folds))


def report_estimator(
    model: Any,
    path: Path,
    splits: Splits,
    signature: Signature,
    workspace: Workspace,
    *,
    primary_output: str | None = None,
) -> Report[TrainFacts]:
    """Record the golden outputs of a fitted estimator; raise StageError if the data does not fit it.

    `splits` are those to predict, `test` among them; `primary_output` is found if it is None.
    """
    from sklearn import __version__

    def predict(inputs: NamedArrays) -> NamedArrays:
        try:
            return sklearn_estimator.predict(model, sklearn_estimator.estimator_inputs(model, _as_float32(inputs)))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise StageError(f"{sklearn_estimator.describe(model)} does not take these samples: {error}") from error

    signature = sklearn_estimator.Columns.of_estimator(model).ordered(signature)
    # Far from the training data, outputs mean nothing: random features must be observed values.
    golden = record_golden(predict, splits["test"], observed_values_only=True)
    facts = TrainFacts(
        framework=f"scikit-learn {__version__}",
        architecture=sklearn_estimator.describe(model),
        parameters=sklearn_estimator.parameter_count(path),
        signature=_complete(signature, golden, model, primary_output),
    )
    return report_model(facts, golden, predict, splits, workspace, path, checks=(_finite_check(golden),))


def _as_float32(inputs: NamedArrays) -> NamedArrays:
    """Return the inputs with floats as float32, like the ONNX model's, so that both see the same rounding."""
    return {name: a.astype(np.float32, copy=False) if a.dtype.kind == "f" else a for name, a in inputs.items()}


def _complete(signature: Signature, golden: Golden, model: Any, primary_output: str | None) -> Signature:
    """Complete the signature; the primary output is the scores if their columns are the data's classes in order."""
    classes = getattr(model, "classes_", None)
    inputs = tuple(s.replace(dtype="float32") if s.dtype.startswith("float") else s for s in signature.inputs)
    columns = sklearn_estimator.Columns.of_estimator(model).features if len(inputs) == 1 else ()
    signature = signature.replace(inputs=inputs, outputs=outputs_of(golden), columns=columns)
    primary_output = primary_output and find_primary_output(primary_output, golden.test_outputs, signature)
    if classes is None:
        if golden.labels is not None and primary_output is None and signature.task != "regression":
            raise StageError(
                "the model names no classes, but the data has labels. Fix: "
                "set data.task to regression if they are values, and else remove them"
            )
        if signature.task == "regression":
            primary_output = find_primary_output(primary_output, golden.test_outputs, signature)
        return signature.replace(primary_output=primary_output)
    if count := label_count(model):
        labels = signature.labels or tuple(map(str, range(count)))
        return signature.replace(primary_output=primary_output or signature.outputs[-1].name, labels=labels)
    names = sklearn_estimator.class_names(classes)
    labels = signature.labels or names
    in_order = names == labels or names == tuple(str(number) for number in range(len(names)))
    scores = signature.outputs[-1].name
    by_class = in_order and sklearn_estimator.label_is_highest(model)
    primary_output = primary_output or (scores if by_class else sklearn_estimator.LABEL)
    if primary_output == sklearn_estimator.LABEL:
        _require_known_labels(golden, labels, names)
    return signature.replace(primary_output=primary_output, labels=labels)


def _require_known_labels(golden: Golden, labels: tuple[str, ...], classes: tuple[str, ...]) -> None:
    """Raise StageError unless each label that occurs is one of the classes, so that a prediction can be right.

    Predicted numbers are compared with the labels' numbers, predicted texts with their names.
    """
    truth = class_indices(golden.labels)
    numbers = () if truth is None else np.unique(truth).tolist()
    are_texts = golden.test_outputs[sklearn_estimator.LABEL].dtype.kind == "U"
    occurring = [labels[number] if are_texts else str(number) for number in numbers]
    if unknown := [label for label in occurring if label not in classes]:
        raise StageError(
            f"the data's labels {', '.join(unknown[:5])} are none of the model's classes, {', '.join(classes[:10])}. "
            "Fix: name the classes in the order of the label numbers, with data.labels or --labels FILE"
        )


def _finite_check(golden: Golden) -> Check:
    floats = {name: array for name, array in golden.test_outputs.items() if array.dtype.kind == "f"}
    invalid = {name: int(np.sum(~np.isfinite(array))) for name, array in floats.items() if not np.isfinite(array).all()}
    detail = f"in the output '{next(iter(invalid))}', test samples" if invalid else ""
    remedy = "look for invalid values in the model's file or in the test samples" if invalid else ""
    count = sum(invalid.values())
    return Check(name="train.non_finite_outputs", value=count, op="==", limit=0, detail=detail, remedy=remedy)


SEED = 0


def cross_validate(folds: int, model: Path, samples: NamedArrays, labels: Array) -> list[float]:
    """Return the accuracy on each part of the samples of an estimator that was trained on the others.

    `samples` are arrays of shape (n, ...) by input, `labels` the indices of their classes. The estimators have the
    settings of the one in the file.

    Raises:
        StageError: when scikit-learn cannot train on a part.
    """
    from sklearn.base import clone
    from sklearn.model_selection import StratifiedKFold, cross_val_score

    estimator = load(model, trusted=None)
    inputs = estimator_inputs(estimator, _as_float32(samples))
    parts = StratifiedKFold(folds, shuffle=True, random_state=SEED)
    try:
        scores = cross_val_score(clone(estimator), inputs, labels, cv=parts, scoring="accuracy", error_score="raise")
        return [float(score) for score in scores]
    except ValueError as error:
        raise StageError(f"evaluate.folds: {folds}: scikit-learn cannot train on a part: {error}") from error
