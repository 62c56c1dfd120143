"""What several test files need to quantize a model as the flow does: calibrated first where the recipe is static."""

from typing import Any

from gauntlet.calibration.minmax import MinMax
from gauntlet.core.artifact import Artifact
from gauntlet.core.report import Report
from gauntlet.core.workspace import Workspace
from tasks.calibrate import CalibrateConfig, CalibrateFacts, calibrate
from tasks.quantize import QuantizeFacts, methods_of, quantize


def calibrated(
    out: Workspace, model: Artifact, calibration: Artifact, test: Artifact, *methods: Any, **config: Any
) -> Report[CalibrateFacts]:
    wanted = methods or (MinMax(),)
    return calibrate(CalibrateConfig(**config), out, model=model, calibration=calibration, test=test, methods=wanted)


def quantized(
    recipe: Any, out: Workspace, model: Artifact, calibration: Artifact, test: Artifact, **config: Any
) -> Report[QuantizeFacts]:
    methods = methods_of((recipe,))
    found = calibrated(out, model, calibration, test, *methods, **config).artifacts if methods else {}
    return quantize(recipe, out, model=model, prepared=found.get("prepared"), ranges=found.get("ranges"))
