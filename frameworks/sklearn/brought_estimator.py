"""A pretrained scikit-learn estimator, saved with skops (without pickle)."""

import shutil
import warnings
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from frameworks.loaded_model import BroughtFile
from frameworks.session import LoadedModel
from frameworks.sklearn import estimator as sklearn_estimator
from frameworks.sklearn.classifier_training import PACKAGES, report_estimator
from gauntlet.core.artifact import Store
from gauntlet.core.errors import StageError
from gauntlet.core.report import Report
from gauntlet.core.signature import Signature
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.splits import Splits
from gauntlet.frameworks.training import splits_to_score
from gauntlet.onnx_model.recognition import Operators
from tasks.train.facts import TrainFacts


class SklearnModel(BroughtFile):
    """Load a fitted estimator, usually a pipeline. One input is its matrix; several inputs are its columns."""

    kind: Literal["sklearn-model"] = "sklearn-model"
    operators: ClassVar[Operators] = "matrices"
    model: Path = Field(description="the file that skops.io.dump(pipeline, ...) wrote")
    trusted: tuple[str, ...] = Field((), description="types in the file to trust besides those that skops trusts")
    primary_output: str | None = Field(None, description="output that names the class; default: scores, else the label")
    trust: bool = Field(False, description="trust every type in the file; needed once for each file")

    packages: ClassVar[dict[str, str]] = PACKAGES
    finds_prediction: ClassVar[bool] = True

    def fit(self, splits: Splits, signature: Signature, workspace: Workspace) -> Report[TrainFacts]:
        """Load the estimator and record its golden outputs. See `tasks.train.train`."""
        scored = splits_to_score(splits)
        model = self._estimator(workspace.store)
        path = workspace.folder / "model.skops"
        shutil.copyfile(self.model, path)
        return report_estimator(model, path, scored, signature, workspace, primary_output=self.primary_output)

    def load_model(self, store: Store) -> LoadedModel:
        """Return the estimator as a model; raise StageError if it cannot be read, or holds an untrusted type."""
        return sklearn_estimator.loaded(self._estimator(store), sklearn_estimator.parameter_count(self.model))

    def _estimator(self, store: Store) -> Any:
        from sklearn.base import BaseEstimator
        from sklearn.exceptions import InconsistentVersionWarning, NotFittedError
        from sklearn.utils.validation import check_is_fitted

        trusted = None if self.trust or store.holds(self.model) else self.trusted
        with warnings.catch_warnings():  # the gates decide whether another version gives the same outputs
            warnings.simplefilter("ignore", InconsistentVersionWarning)
            model = sklearn_estimator.load(self.model, trusted)
        if not isinstance(model, BaseEstimator):
            raise StageError(f"{self.model}: holds a {type(model).__name__}, not a scikit-learn estimator")
        try:
            check_is_fitted(model)
        except NotFittedError as error:
            raise StageError(f"{self.model}: the estimator is not fitted. Fix: fit it, then save it again") from error
        return model
