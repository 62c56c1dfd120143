"""A model built to saturate, quantized in three ways, and a stage that judges it."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx
import pytest
from conftest import Trained
from onnx import numpy_helper

from gauntlet.calibration.methods import Percentile
from gauntlet.core.artifact import Artifact
from gauntlet.core.report import Report
from gauntlet.core.workspace import Workspace
from tasks.calibrate import CalibrateConfig, calibrate
from tasks.quantize import quantize
from tasks.quantize.static import StaticInt8
from wings.portability import PortabilityConfig, PortabilityFacts, portability


def with_doubled_channels(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return a network that answers the same, in which every inner channel is there twice, side by side.

    Each of two neighbours has half the weight, so the two largest products of a sum always meet in one pair.

    Args:
        proto: a chain of Conv and Gemm nodes, each Conv with a bias; is changed.
    """
    stored = {t.name: t for t in proto.graph.initializer}
    first = True
    for node in proto.graph.node:
        if node.op_type not in ("Conv", "Gemm"):
            continue
        weights = numpy_helper.to_array(stored[node.input[1]])
        if not first:
            weights = np.repeat(weights, 2, axis=1) / 2
        if node.op_type == "Conv":
            weights = np.repeat(weights, 2, axis=0)
            bias = stored[node.input[2]]
            bias.CopyFrom(numpy_helper.from_array(np.repeat(numpy_helper.to_array(bias), 2), bias.name))
        stored[node.input[1]].CopyFrom(numpy_helper.from_array(weights, node.input[1]))
        first = False
    del proto.graph.value_info[:]
    return proto


@dataclass(frozen=True)
class Twinned:
    """The FP32 model and its quantized forms, all in the store of `trained`."""

    trained: Trained
    model: Artifact
    full: Artifact
    reduced: Artifact
    signed: Artifact


@pytest.fixture(scope="session")
def twins(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> Twinned:
    root = tmp_path_factory.mktemp("twins")

    def workspace(name: str) -> Workspace:
        (root / name).mkdir()
        return Workspace(trained.store, root / name)

    start = workspace("start")
    onnx.save(with_doubled_channels(trained.proto()), start.folder / "model.onnx")
    model = start.store_file(start.folder / "model.onnx")
    often_at_the_top = Percentile(percentile=93)
    full = StaticInt8(calibration_method=often_at_the_top)
    recipes = {"full": full, "reduced": full.replace(reduce_range=True), "signed": full.replace(activations="s8")}
    found = calibrate(
        CalibrateConfig(),
        workspace("calibrate"),
        model=model,
        calibration=trained.artifacts["calibration"],
        test=trained.test,
        methods=(often_at_the_top,),
    ).artifacts
    made = {
        name: quantize(recipe, workspace(name), model=model, prepared=found["prepared"], ranges=found["ranges"])
        for name, recipe in recipes.items()
    }
    return Twinned(trained, model, **{name: report.artifacts["model"] for name, report in made.items()})


@pytest.fixture
def judge(twins: Twinned, workspace: Callable[..., Workspace]) -> Callable[..., Report[PortabilityFacts]]:
    """Runs the stage on a model; the prediction takes the test split too, so that it can be compared."""

    def run(model: Artifact, **config: object) -> Report[PortabilityFacts]:
        chosen = PortabilityConfig.model_validate(config)
        return portability(
            chosen,
            workspace(twins.trained.store),
            model=model,
            samples=twins.trained.test,
            test=twins.trained.test,
            emulators=chosen.emulators(),
        )

    return run
