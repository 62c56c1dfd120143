"""A model built to saturate, quantised in three ways, and a stage that judges it."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx
import pytest
from conftest import Trained
from onnx import numpy_helper

from tasks.artifact import Artifact
from tasks.calibrate import CalibrateConfig, calibrate
from tasks.portability import PortabilityConfig, PortabilityFacts, check_portability
from tasks.quantize import quantize
from tasks.quantize.static import StaticInt8
from tasks.ranges.percentile import Percentile
from tasks.report import Report
from tasks.workspace import Workspace


def twinned(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return a network that answers the same, in which every inner channel is there twice, side by side.

    Each of two neighbours has half the weight, so the two largest products of a sum always meet in one pair.
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
    """The FP32 model and its quantised forms, all in the store of `trained`."""

    trained: Trained
    model: Artifact
    full: Artifact
    seven_bit: Artifact


@pytest.fixture(scope="session")
def twins(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> Twinned:
    root = tmp_path_factory.mktemp("twins")

    def workspace(name: str) -> Workspace:
        (root / name).mkdir()
        return Workspace(trained.store, root / name)

    start = workspace("start")
    onnx.save(twinned(trained.proto()), start.folder / "model.onnx")
    model = start.keep(start.folder / "model.onnx")
    often_at_the_top = Percentile(percentile=93)
    recipes = {
        bits: StaticInt8(method=often_at_the_top, reduce_range=bits == "seven_bit") for bits in ("full", "seven_bit")
    }
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
        return check_portability(
            chosen,
            workspace(twins.trained.store),
            model=model,
            samples=twins.trained.test,
            test=twins.trained.test,
            emulators=chosen.emulators(),
        )

    return run
