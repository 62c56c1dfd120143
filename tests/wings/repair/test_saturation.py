"""Where sums saturate, repair predicts and evaluates with weights whose sums do not."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from conftest import Trained
from onnx import numpy_helper
from processors import CASCADE_LAKE, HASWELL, on_haswell
from uneven_networks import LIMITS, Network, mended, quantized

from gauntlet.core.artifact import Artifact
from gauntlet.core.report import Report
from gauntlet.core.workspace import Workspace
from gauntlet.runtime.processor import Processor
from tasks.accuracy import AccuracyConfig
from tasks.quantize.static import StaticInt8
from wings.repair import RepairConfig, RepairFacts


def sum_of_weights(network: Network, model: Artifact) -> int:
    proto = onnx.load(network.trained.store.path(model))
    stored = [numpy_helper.to_array(t) for t in proto.graph.initializer if t.data_type == onnx.TensorProto.INT8]
    return sum(int(np.abs(array.astype(int)).sum()) for array in stored if array.ndim > 1)


@pytest.mark.slow
def test_range_is_reduced_before_any_node_is_left_in_float_when_sums_saturate(
    network: Network, workspace: Callable[..., Workspace]
) -> None:
    out = workspace(network.trained.store)
    report = mended(network, out, LIMITS, HASWELL)
    facts = report.facts
    assert facts.reduced
    assert [bool(attempt.float_nodes) for attempt in facts.trials] == [False, *[True] * (len(facts.trials) - 1)]
    assert facts.trials[-1].good
    assert sum_of_weights(network, report.artifacts["model"]) < sum_of_weights(network, network.quantized)
    check = next(c for c in report.checks if c.name == "repair.within_limits")
    assert f"weights without overflow, {len(facts.float_nodes)} of {facts.nodes} nodes in float" in check.detail


@pytest.mark.parametrize(
    ("recipe", "processor"),
    [
        (StaticInt8(), CASCADE_LAKE),
        (StaticInt8(reduce_range=True), HASWELL),
        (StaticInt8(weights="u8", per_channel=False), HASWELL),
        (StaticInt8(activations="s8", format="qoperator"), HASWELL),
    ],
)
def test_recipe_is_repaired_as_it_is_when_its_sums_do_not_saturate(recipe: StaticInt8, processor: Processor) -> None:
    assert recipe.without_saturation(processor) == recipe


def test_recipe_is_not_repaired_when_its_reduced_form_is_a_candidate_too() -> None:
    plain, reduced = StaticInt8(), StaticInt8(reduce_range=True)
    config, both = RepairConfig(), (plain, reduced)
    assert [config.can_repair(recipe, both, HASWELL) for recipe in both] == [False, True]
    assert [config.can_repair(recipe, both, CASCADE_LAKE) for recipe in both] == [True, True]
    assert config.can_repair(plain, (plain,), HASWELL)


ON_HASWELL = """
import sys
from pathlib import Path
from tasks.accuracy import AccuracyConfig
from gauntlet.core.artifact import Artifact, Store
from tasks.quantize.static import StaticInt8
from wings.repair import RepairConfig, repair
from gauntlet.runtime.processor import Processor
from gauntlet.core.workspace import Workspace

store, folder, recipe, limits, *artifacts = sys.argv[1:]
model, quantized, prepared, ranges, images, test = (Artifact.model_validate_json(a) for a in artifacts)
config, out = RepairConfig(images=48, budget_s=1000), Workspace(Store(Path(store)), Path(folder))
report = repair(
    config, out, recipe=StaticInt8.model_validate_json(recipe),
    accuracy=AccuracyConfig.model_validate_json(limits), model=model, quantized=quantized, prepared=prepared,
    ranges=ranges, images=images, test=test, processor=Processor("x86_64", frozenset({"avx2"})),
)
print(report.model_dump_json())
"""


def mended_on_haswell(network: Network, folder: Path, limits: AccuracyConfig = LIMITS) -> RepairFacts:
    folder.mkdir()
    artifacts = [network.model, network.quantized, network.calibrated["prepared"], network.calibrated["ranges"]]
    artifacts += [network.trained.artifacts["validation"], network.trained.test]
    values = [value.model_dump_json() for value in (network.recipe, limits, *artifacts)]
    told = on_haswell(ON_HASWELL, network.trained.store.root, folder, *values)
    return Report[RepairFacts].model_validate_json(told.splitlines()[-1]).facts


@pytest.mark.nightly
def test_prediction_is_what_a_processor_gives_when_its_sums_saturate(network: Network, tmp_path: Path) -> None:
    facts = mended_on_haswell(network, tmp_path / "work")
    assert facts.trials[-1].good
    for attempt in facts.trials:
        assert attempt.quality.sqnr_db == pytest.approx(attempt.predicted.sqnr_db, abs=1)


@pytest.mark.nightly
def test_reduced_range_is_enough_when_only_saturation_costs_accuracy(trained: Trained, tmp_path: Path) -> None:
    """Every node stays in integers: the model is as small and as fast as it was."""
    limits = LIMITS.replace(min_sqnr_db=15)
    facts = mended_on_haswell(quantized(trained, tmp_path, trained.proto(), StaticInt8()), tmp_path / "work", limits)
    assert facts.before.sqnr_db < limits.min_sqnr_db
    [attempt] = facts.trials
    assert (attempt.good, attempt.float_nodes, facts.ranked) == (True, (), 0)
    assert attempt.quality.sqnr_db == pytest.approx(attempt.predicted.sqnr_db, abs=1)
