"""Gradient-boosted trees of LightGBM and XGBoost."""

import sys
from pathlib import Path
from typing import Any

from frameworks.boosting.onnxmltools import OnnxMlTools
from frameworks.boosting.training import BoostingModel, BoostingTraining, fitted_columns
from gauntlet.core.errors import ConfigError, StageError
from gauntlet.frameworks.framework import Framework

BEGINNINGS = {".txt": b"tree\n", ".json": b'{"learner"', ".ubj": b"{L"}
"""How the files begin that LightGBM and XGBoost save: their suffixes are also those of other files."""


def recognize(source: str) -> str | None:
    """Return the kind of a file that `Booster.save_model` wrote; raise `ConfigError` for one of CatBoost."""
    path = Path(source)
    if path.suffix.lower() == ".cbm":
        raise ConfigError(f"{source}: CatBoost's own file. Fix: model.save_model('model.onnx', format='onnx')")
    beginning = BEGINNINGS.get(path.suffix.lower())
    if beginning is None or not path.is_file():
        return None
    with path.open("rb") as file:
        return "boosting-model" if file.read(len(beginning)) == beginning else None


def save_trees(model: Any, sample: object, folder: Path) -> Path | None:
    """Save trees that Python holds, also those in a wrapper for scikit-learn; see `Framework.save`.

    Raises:
        StageError: for a wrapper that takes another value than NaN for a missing one, which its file does not say.
    """
    lightgbm, xgboost = sys.modules.get("lightgbm"), sys.modules.get("xgboost")
    if lightgbm is not None and isinstance(model, lightgbm.Booster | lightgbm.LGBMModel):
        path, booster = folder / "lightgbm.txt", getattr(model, "booster_", model)
    elif xgboost is not None and isinstance(model, xgboost.Booster | xgboost.XGBModel):
        if (missing := getattr(model, "missing", None)) is not None and missing == missing:  # NaN is not itself
            raise StageError(
                f"{type(model).__name__}: it takes {missing} for a missing value, and its file would not. Fix: write "
                f"NaN for {missing} in the samples, and give model.get_booster()"
            )
        path, booster = folder / "xgboost.json", model.get_booster() if hasattr(model, "get_booster") else model
    else:
        return None
    booster.save_model(path)
    return path


BOOSTING = Framework(
    name="boosting",
    train=(BoostingTraining, BoostingModel),
    export=(OnnxMlTools,),
    modules=dict.fromkeys(("lightgbm", "xgboost", "onnxmltools"), "boosting"),
    recognize=recognize,
    save=save_trees,
    columns=fitted_columns,
)
