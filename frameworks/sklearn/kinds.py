"""scikit-learn: estimators that are trained or brought."""

from pathlib import Path
from typing import ClassVar, Literal

from frameworks.sklearn.brought_estimator import SklearnModel
from frameworks.sklearn.classifier_training import SklearnTraining, cross_validate
from frameworks.sklearn.estimator import fitted_columns, save_estimator
from frameworks.sklearn.skl2onnx import Skl2Onnx
from gauntlet.core.errors import ConfigError
from gauntlet.frameworks.framework import Framework
from gauntlet.targets.base import FrameworkTarget


class Sklearn(FrameworkTarget):
    """The most informative method: `predict_proba`, else `decision_function`, else `predict` or `transform`."""

    kind: Literal["sklearn"] = "sklearn"
    engine: ClassVar[str] = "frameworks.sklearn.engine"
    model_suffixes: ClassVar[tuple[str, ...]] = (".skops",)
    packages: ClassVar[dict[str, str]] = {"skops": "sklearn"}


PICKLES = (".pkl", ".pickle", ".joblib")


def recognize(source: str) -> None:
    """Refuse a pickle, as which most estimators are saved: reading one runs the code that it names."""
    path = Path(source)
    if path.suffix.lower() in PICKLES and path.is_file():
        raise ConfigError(
            f"{path}: reading a pickle runs the code that it names, so it is not read. Fix: if you trust it, save it "
            f"anew: skops.io.dump(joblib.load({path.name!r}), {path.with_suffix('.skops').name!r})"
        )


SKLEARN = Framework(
    name="sklearn",
    train=(SklearnTraining, SklearnModel),
    export=(Skl2Onnx,),
    target=(Sklearn,),
    suffixes={".skops": "sklearn-model"},
    archives=(".skops",),
    modules=dict.fromkeys(("skops", "skl2onnx"), "sklearn"),
    recognize=recognize,
    save=save_estimator,
    columns=fitted_columns,
    cross_validate=cross_validate,
)
