"""scikit-learn training: a support vector machine on vectors, and what every scikit-learn model leaves behind."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, PositiveFloat

from gauntlet.core.arrays import NamedArrays
from gauntlet.core.errors import StageError
from gauntlet.core.frozen import Frozen
from gauntlet.core.report import Check, Report
from gauntlet.core.signature import Signature, TensorSpec
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.golden import Golden, record_golden
from gauntlet.datasets.splits import Split, batches, require_labels
from gauntlet.frameworks.sklearn import estimator as source
from gauntlet.frameworks.training import require_labelled, store_golden_and_predictions
from tasks.train.facts import TrainFacts, find_answer, single_input

PACKAGES = {"skops": "sklearn"}
ROWS = 1024  # read at once


class SklearnTraining(Frozen):
    """Train StandardScaler and one SVC a class, with probabilities.

    Each class's score goes through a sigmoid that is fitted by cross-validation (Platt, 1999), which scikit-learn 1.9
    advises in place of `SVC(probability=True)`. One machine a class, and not one a pair of classes, because the pairs'
    votes jump where a rounding error moves a sample across a border: an exported model could then not be sure to give
    the same probabilities.
    """

    kind: Literal["sklearn"] = "sklearn"
    C: float = Field(10.0, gt=0, description="how much a wrong training sample costs; larger fits more closely")
    gamma: Literal["scale", "auto"] | PositiveFloat = Field(
        "scale", description="how near a sample must be to matter; by default from the data's variance"
    )
    kernel: Literal["rbf", "linear", "poly", "sigmoid"] = "rbf"
    folds: int = Field(5, ge=2, le=20, description="of the cross-validation that fits the probabilities")
    seed: int = Field(0, ge=0, description="of the folds and of the random inputs")

    packages: ClassVar[dict[str, str]] = PACKAGES

    def files(self) -> tuple[Path, ...]:
        """Return the user's files that are read: none."""
        return ()

    def fit(self, splits: Mapping[str, Split], signature: Signature, workspace: Workspace) -> Report[TrainFacts]:
        """Train on the training split, which must fit into memory, and save the model with its answers.

        See `tasks.train.train`.

        Raises:
            StageError: when a sample is no vector, a class is missing, or scikit-learn cannot train on the data.
        """
        data, name = require_labelled(splits, "train", "validation", "test"), single_input(signature)
        shape = signature.inputs[0].shape[1:]
        if len(shape) != 1:
            raise StageError(
                f"train.kind: sklearn trains on one vector a sample; the data has samples of shape {shape}. "
                "Turn pictures into vectors (data.hog), or save arrays of shape (samples, features)"
            )
        labels = require_labels(data["train"])
        lacking = sorted(set(range(len(signature.labels))) - set(labels.tolist()))
        if lacking:
            names = ", ".join(signature.labels[number] for number in lacking[:5])
            raise StageError(f"the training split has no sample of: {names}; add some, or leave the class out")
        inputs = np.concatenate([as_float32(batch)[name] for batch in batches(data["train"], ROWS)])
        model = self._untrained()
        try:
            model.fit(inputs, labels)
        except ValueError as error:
            raise StageError(f"scikit-learn cannot train on this data: {error}") from error
        path = workspace.folder / "model.skops"
        source.save(path, model)
        return report_pretrained(model, path, data, data["test"], signature, workspace, seed=self.seed)

    def _untrained(self) -> Any:
        from sklearn.calibration import CalibratedClassifierCV
        from sklearn.model_selection import StratifiedKFold
        from sklearn.multiclass import OneVsRestClassifier
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler
        from sklearn.svm import SVC

        machines = OneVsRestClassifier(SVC(C=self.C, gamma=self.gamma, kernel=self.kernel))
        folds = StratifiedKFold(self.folds, shuffle=True, random_state=self.seed)
        return make_pipeline(StandardScaler(), CalibratedClassifierCV(machines, ensemble=False, cv=folds))


def report_pretrained(
    model: Any,
    path: Path,
    measured: Mapping[str, Split],
    test: Split,
    signature: Signature,
    workspace: Workspace,
    *,
    seed: int,
    primary_output: str | None = None,
) -> Report[TrainFacts]:
    """Ask a fitted model for its answers and report on it.

    Args:
        model: the estimator.
        path: its file, in the workspace's folder.
        measured: the splits whose classes are predicted.
        test: the test split.
        signature: what the data decides.
        workspace: where to write.
        seed: of the random inputs.
        primary_output: the output that names the class; by default it is found.

    Raises:
        StageError: when the data does not fit the model.
    """
    from sklearn import __version__

    def predict(inputs: NamedArrays) -> NamedArrays:
        try:
            return source.answers(model, source.samples(as_float32(inputs)))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise StageError(f"{source.describe(model)} does not take these samples: {error}") from error

    # A vector of features is no picture: far from all that the model has seen, its answers say nothing.
    golden = record_golden(predict, test, seed=seed, values_that_occur=True)
    signature = _signed(signature, golden, getattr(model, "classes_", None), primary_output)
    facts = TrainFacts(
        framework=f"scikit-learn {__version__}",
        architecture=source.describe(model),
        parameters=source.parameter_count(path),
        signature=signature,
    )
    artifacts = store_golden_and_predictions(golden, predict, measured, signature, workspace)
    artifacts["model"] = workspace.store_file(path)
    return Report(stage="train", facts=facts, checks=(_all_finite(golden),), artifacts=artifacts)


def as_float32(inputs: NamedArrays) -> NamedArrays:
    """Return the inputs as the ONNX model takes them: rounded before the source sees them, not behind its back."""

    def rounded(array: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        return array.astype(np.float32, copy=False) if array.dtype.kind == "f" else array

    return {name: rounded(array) for name, array in inputs.items()}


def _signed(signature: Signature, golden: Golden, classes: Any, primary_output: str | None) -> Signature:
    """Return the whole signature.

    The scores name the class where their columns are the data's classes in their order; else the label does.
    """
    inputs = tuple(s.replace(dtype="float32") if s.dtype.startswith("float") else s for s in signature.inputs)
    outputs = tuple(
        TensorSpec(name=n, dtype=_dtype(a), shape=("batch", *a.shape[1:])) for n, a in golden.test_outputs.items()
    )
    signature = signature.replace(inputs=inputs, outputs=outputs)
    found = [spec.name for spec in outputs]
    primary_output = primary_output and find_answer(primary_output, golden.test_outputs, signature.labels)
    if classes is None:
        if golden.labels is not None and primary_output is None:
            raise StageError("the model names no classes, but the data has labels; leave them out of the data")
        return signature.replace(primary_output=primary_output)
    names = tuple(str(name) for name in classes)
    labels = signature.labels or names
    in_order = names == labels or names == tuple(str(number) for number in range(len(names)))
    scores = next(name for name in found if name != source.LABEL)
    return signature.replace(primary_output=primary_output or (scores if in_order else source.LABEL), labels=labels)


def _dtype(array: npt.NDArray[np.generic]) -> str:
    return "str" if array.dtype.kind == "U" else array.dtype.name


def _all_finite(golden: Golden) -> Check:
    broken = {name: a for name, a in golden.test_outputs.items() if a.dtype.kind == "f" and not np.isfinite(a).all()}
    return Check(
        name="train.non_finite_outputs",
        value=sum(int((~np.isfinite(array)).sum()) for array in broken.values()),
        op="==",
        limit=0,
        detail=f"in the output '{next(iter(broken))}', test samples" if broken else "",
        remedy="look for broken values in the model's file or in the test samples" if broken else "",
    )
