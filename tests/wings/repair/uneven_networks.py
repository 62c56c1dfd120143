"""Networks whose INT8 form collapses, and their repair."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
from conftest import Trained
from onnx import numpy_helper

from gauntlet.core.artifact import Artifact
from gauntlet.core.report import Report
from gauntlet.core.workspace import Workspace
from gauntlet.runtime.processor import Processor
from tasks.accuracy import AccuracyConfig
from tasks.calibrate import CalibrateConfig, calibrate
from tasks.quantize import quantize
from tasks.quantize.static import StaticInt8
from wings.repair import RepairConfig, RepairFacts, repair

RECIPE = StaticInt8(per_channel=False)
Mend = Callable[..., Report[RepairFacts]]
LIMITS = AccuracyConfig(max_accuracy_drop=0.01, min_sqnr_db=20)
SATURATES = Processor.current().saturates


def uneven(proto: onnx.ModelProto, layer: int) -> onnx.ModelProto:
    """Return a network that answers the same, whose channels behind one convolution differ a thousandfold in range.

    Between two layers with only a ReLU and a pooling, a channel may be scaled and the next layer's weights scaled back.
    """
    stored = {t.name: t for t in proto.graph.initializer}
    first, second = [n for n in proto.graph.node if n.op_type == "Conv"][layer : layer + 2]

    def scale(name: str, factors: np.ndarray) -> None:
        values = numpy_helper.to_array(stored[name]) * factors
        stored[name].CopyFrom(numpy_helper.from_array(values.astype(np.float32), name))

    factors = 10 ** np.random.default_rng(0).uniform(-1.5, 1.5, stored[first.input[1]].dims[0])
    scale(first.input[1], factors[:, None, None, None])
    scale(first.input[2], factors)
    scale(second.input[1], 1 / factors[None, :, None, None])
    return proto


@dataclass(frozen=True)
class Network:
    """A network, its calibration, and its quantized form."""

    trained: Trained
    recipe: StaticInt8
    model: Artifact
    quantized: Artifact
    calibrated: dict[str, Artifact]
    convolutions: tuple[str, ...]


def quantized(trained: Trained, root: Path, proto: onnx.ModelProto, recipe: StaticInt8) -> Network:
    for name in ("start", "calibrate", "quantize"):
        (root / name).mkdir()
    start = Workspace(trained.store, root / "start")
    onnx.save(proto, start.folder / "model.onnx")
    model = start.store_file(start.folder / "model.onnx")
    report = calibrate(
        CalibrateConfig(),
        Workspace(trained.store, root / "calibrate"),
        model=model,
        calibration=trained.artifacts["calibration"],
        test=trained.test,
        methods=(recipe.calibration_method,),
    )
    prepared = onnx.load(trained.store.path(report.artifacts["prepared"]))
    naive = quantize(recipe, Workspace(trained.store, root / "quantize"), model=model, **report.artifacts)
    return Network(
        trained,
        recipe,
        model,
        naive.artifacts["model"],
        dict(report.artifacts),
        tuple(n.name for n in prepared.graph.node if n.op_type == "Conv"),
    )


def mended(
    network: Network,
    out: Workspace,
    limits: AccuracyConfig,
    processor: Processor | None = None,
    *,
    rejected: bool = True,
    **config: object,
) -> Report[RepairFacts]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("wings.repair.stem.MIN_GAIN", 1.0)  # a clock decides nothing here
        return repair(
            RepairConfig.model_validate(config),
            out,
            recipe=network.recipe,
            accuracy=limits,
            model=network.model,
            quantized=network.quantized,
            prepared=network.calibrated["prepared"],
            ranges=network.calibrated["ranges"],
            images=network.trained.artifacts["validation"],
            test=network.trained.test,
            rejected=rejected,
            processor=processor,
        )
