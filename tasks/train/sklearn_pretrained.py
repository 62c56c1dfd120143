"""A scikit-learn pipeline that was trained elsewhere and saved with skops, which needs no pickle."""

import shutil
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from gauntlet.core.errors import StageError
from gauntlet.core.frozen import Frozen
from gauntlet.core.report import Report
from gauntlet.core.signature import Signature
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.splits import Split
from gauntlet.frameworks.sklearn import estimator as source
from gauntlet.frameworks.training import measured
from tasks.train.facts import TrainFacts
from tasks.train.sklearn import PACKAGES, report_pretrained


class SklearnModel(Frozen):
    """Take a fitted estimator, most often a pipeline, as it is. One input is its matrix; several are its columns."""

    kind: Literal["sklearn-model"] = "sklearn-model"
    model: Path = Field(description="what skops.io.dump(pipeline, ...) wrote")
    trusted: tuple[str, ...] = Field(
        (), description="types in the file that you trust besides those that skops trusts by itself"
    )
    primary_output: str | None = Field(
        None,
        description="the output that names the class; by default the scores, or else the label",
    )
    seed: int = Field(0, ge=0, description="of the random inputs")

    packages: ClassVar[dict[str, str]] = PACKAGES

    def files(self) -> tuple[Path, ...]:
        """Return the user's files that are read."""
        return (self.model,)

    def fit(self, splits: Mapping[str, Split], signature: Signature, workspace: Workspace) -> Report[TrainFacts]:
        """Take the estimator and ask it for its answers. See `tasks.train.train`.

        Raises:
            StageError: when the file is missing, unreadable, holds types that are not trusted, or no fitted estimator,
                or the data does not fit it.
        """
        from sklearn.base import BaseEstimator
        from sklearn.exceptions import InconsistentVersionWarning, NotFittedError
        from sklearn.utils.validation import check_is_fitted

        test = measured(splits)
        with warnings.catch_warnings():  # whether another version answers the same is for the gates to say
            warnings.simplefilter("ignore", InconsistentVersionWarning)
            model = source.load(self.model, self.trusted)
        if not isinstance(model, BaseEstimator):
            raise StageError(f"{self.model}: holds a {type(model).__name__}, not a scikit-learn estimator")
        try:
            check_is_fitted(model)
        except NotFittedError as error:
            raise StageError(f"{self.model}: the estimator is not fitted; fit it, then save it again") from error
        path = workspace.folder / "model.skops"
        shutil.copyfile(self.model, path)
        return report_pretrained(
            model, path, {"test": test}, test, signature, workspace, seed=self.seed, primary_output=self.primary_output
        )
