"""A scikit-learn pipeline that was trained elsewhere and saved with skops, which needs no pickle."""

import shutil
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from tasks.data.dataset import Split
from tasks.errors import StageError
from tasks.frozen import Frozen
from tasks.report import Report
from tasks.signature import Signature
from tasks.sources import sklearn as source
from tasks.train.facts import TrainFacts
from tasks.train.sklearn import PACKAGES, taken
from tasks.workspace import Workspace


class SklearnModel(Frozen):
    """Take a fitted estimator, most often a pipeline, as it is. One input is its matrix; several are its columns."""

    kind: Literal["sklearn-model"] = "sklearn-model"
    model: Path = Field(description="what skops.io.dump(pipeline, ...) wrote")
    trusted: tuple[str, ...] = Field(
        (), description="types in the file that you trust besides those that skops trusts by itself"
    )
    answer: str | None = Field(
        None,
        description="the output that names the class; by default the scores, or else the label",
    )
    seed: int = Field(0, ge=0, description="of the random inputs")

    packages: ClassVar[dict[str, str]] = PACKAGES

    def files(self) -> tuple[Path, ...]:
        """Return the user's files that are read."""
        return (self.model,)

    def fit(self, splits: Mapping[str, Split], signature: Signature, out: Workspace) -> Report[TrainFacts]:
        """Take the estimator and ask it for its answers. See `tasks.train.train`.

        Raises:
            StageError: when the file is missing, unreadable, holds types that are not trusted, or no fitted estimator,
                or the data does not fit it.
        """
        from sklearn.base import BaseEstimator
        from sklearn.exceptions import InconsistentVersionWarning, NotFittedError
        from sklearn.utils.validation import check_is_fitted

        if "test" not in splits:
            raise StageError(f"the model is measured on the split 'test'; the data has {sorted(splits)}")
        with warnings.catch_warnings():  # whether another version answers the same is for the gates to say
            warnings.simplefilter("ignore", InconsistentVersionWarning)
            model = source.load(self.model, self.trusted)
        if not isinstance(model, BaseEstimator):
            raise StageError(f"{self.model}: holds a {type(model).__name__}, not a scikit-learn estimator")
        try:
            check_is_fitted(model)
        except NotFittedError as error:
            raise StageError(f"{self.model}: the estimator is not fitted; fit it, then save it again") from error
        path = out.folder / "model.skops"
        shutil.copyfile(self.model, path)
        test = splits["test"]
        return taken(model, path, {"test": test}, test, signature, out, seed=self.seed, answer=self.answer)
