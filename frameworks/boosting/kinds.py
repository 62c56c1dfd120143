"""Gradient-boosted trees of LightGBM and XGBoost."""

from pathlib import Path

from frameworks.boosting.onnxmltools import OnnxMlTools
from frameworks.boosting.training import BoostingModel, BoostingTraining
from gauntlet.frameworks.framework import Framework

BEGINNINGS = {".txt": b"tree\n", ".json": b'{"learner"', ".ubj": b"{L"}
"""How the files begin that LightGBM and XGBoost save: their suffixes are also those of other files."""


def recognize(source: str) -> str | None:
    """Return the kind of a file that `Booster.save_model` wrote."""
    path = Path(source)
    beginning = BEGINNINGS.get(path.suffix.lower())
    if beginning is None or not path.is_file():
        return None
    with path.open("rb") as file:
        return "boosting-model" if file.read(len(beginning)) == beginning else None


BOOSTING = Framework(
    name="boosting",
    train=(BoostingTraining, BoostingModel),
    export=(OnnxMlTools,),
    modules=dict.fromkeys(("lightgbm", "xgboost", "onnxmltools"), "boosting"),
    recognize=recognize,
)
