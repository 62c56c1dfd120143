"""A network whose INT8 form collapses is repaired; how, is read from what the stage reports and leaves behind."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_text
import pytest
from conftest import Trained
from onnx import numpy_helper
from processors import CASCADE_LAKE, HASWELL, on_haswell

from gauntlet.core.artifact import Artifact
from gauntlet.core.errors import GateFailed
from gauntlet.core.report import Report
from gauntlet.core.signature import signature_from_graph
from gauntlet.core.workspace import Workspace
from gauntlet.runtime.processor import Processor
from tasks.accuracy import AccuracyConfig, accuracy
from tasks.calibrate import CalibrateConfig, calibrate
from tasks.quantize import quantize
from tasks.quantize.static import StaticInt8
from tasks.repair import RepairConfig, RepairFacts, repair

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


@pytest.fixture(scope="module")
def network(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> Network:
    return quantized(trained, tmp_path_factory.mktemp("uneven"), uneven(trained.proto(), layer=1), RECIPE)


def mended(
    network: Network, out: Workspace, limits: AccuracyConfig, processor: Processor | None = None, **config: object
) -> Report[RepairFacts]:
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
        processor=processor,
    )


@pytest.fixture
def mend(network: Network, workspace: Callable[..., Workspace]) -> Mend:
    def run(limits: AccuracyConfig = LIMITS, **how: Any) -> Report[RepairFacts]:
        return mended(network, workspace(network.trained.store), limits, **how)

    return run


@pytest.fixture(scope="module")
def plain(network: Network, tmp_path_factory: pytest.TempPathFactory) -> Report[RepairFacts]:
    """The repair with nothing set."""
    return mended(network, Workspace(network.trained.store, tmp_path_factory.mktemp("plain")), LIMITS)


def judged(network: Network, workspace: Callable[..., Workspace], model: Artifact) -> Report[object]:
    trained = network.trained
    return accuracy(LIMITS, workspace(trained.store), model=model, golden=trained.golden, test=trained.test)  # type: ignore[return-value]


def test_collapsed_network_passes_its_gate_when_it_is_repaired(
    network: Network, workspace: Callable[..., Workspace], plain: Report[RepairFacts]
) -> None:
    with pytest.raises(GateFailed, match=r"accuracy\.(max_accuracy_drop|min_sqnr_db)"):
        judged(network, workspace, network.quantized).raise_if_blocked()

    facts = plain.facts
    judged(network, workspace, plain.artifacts["model"]).raise_if_blocked()
    assert facts.trials[-1].good
    assert len(facts.trials) <= 2 + SATURATES
    # The uneven channels lie between these two; the other layers stay in integers.
    assert set(facts.float_nodes) & set(network.convolutions[1:])
    assert network.convolutions[0] not in facts.float_nodes
    assert facts.before is not None
    assert facts.before.sqnr_db < LIMITS.min_sqnr_db <= facts.trials[-1].quality.sqnr_db


@pytest.mark.parametrize("processor", [None, HASWELL])
def test_prediction_is_what_the_real_quantizer_gives(mend: Mend, processor: Processor | None) -> None:
    report = mend(prediction_images=256, processor=processor)
    assert report.facts.images == 180
    for attempt in report.facts.trials:
        assert attempt.quality.sqnr_db == pytest.approx(attempt.predicted.sqnr_db, abs=1)


@pytest.mark.parametrize(("processor", "float_nodes"), [(CASCADE_LAKE, 1), (HASWELL, 0)])
def test_one_set_is_evaluated_and_no_more_asked_when_the_budget_is_used_up(
    mend: Mend, processor: Processor, float_nodes: int
) -> None:
    report = mend(AccuracyConfig(min_sqnr_db=1000), budget_s=1e-9, processor=processor)
    facts = report.facts
    assert (facts.stopped, facts.ranked, len(facts.trials)) == ("time used up", 0, 1)
    assert len(facts.trials[0].float_nodes) == float_nodes
    assert report.artifacts["model"].size_bytes > 0
    check = next(c for c in report.checks if c.name == "repair.within_limits")
    assert (check.passed, check.severity) == (False, "warning")
    assert check.remedy == "raise repair.max_trials or repair.budget_s"


def test_model_that_answers_only_a_class_is_repaired_by_its_accuracy(
    network: Network, workspace: Callable[..., Workspace]
) -> None:
    out = workspace(network.trained.store)

    def classifying(model: Artifact, name: str) -> Artifact:
        proto = onnx.load(out.path(model))
        scores = proto.graph.output[0].name
        argmax = f'[class] class = ArgMax<axis = 1, keepdims = 0>("{scores}")'
        onnx_text.extend(proto, f"added () => (int64[n] class) {{ {argmax} }}")
        signature_from_graph(proto).write(proto)
        onnx.save(proto, out.folder / name)
        return out.store_file(out.folder / name)

    prepared = classifying(network.calibrated["prepared"], "prepared.onnx")
    changed = {"model": classifying(network.model, "m.onnx"), "quantized": classifying(network.quantized, "q.onnx")}
    calibrated = {**network.calibrated, "prepared": prepared}
    facts = mended(replace(network, calibrated=calibrated, **changed), workspace(network.trained.store), LIMITS).facts
    assert facts.before is not None
    assert facts.before.paired is not None
    assert facts.before.paired.drop > LIMITS.max_accuracy_drop
    assert facts.trials[-1].good
    assert 0 < len(facts.float_nodes) < facts.nodes


@pytest.mark.parametrize(("processor", "attempts"), [(CASCADE_LAKE, 1), (HASWELL, 2)])
def test_repair_says_so_when_not_even_floats_are_good_enough(mend: Mend, processor: Processor, attempts: int) -> None:
    """The test split is too small to prove what is asked for, whatever a model answers."""
    report = mend(AccuracyConfig(max_accuracy_drop=0.001, unresolved="reject"), processor=processor)
    assert (report.facts.stopped, len(report.facts.trials)) == ("not even in float", attempts)
    check = next(c for c in report.checks if c.name == "repair.within_limits")
    assert not check.passed
    assert check.remedy.startswith("loosen the limits")


def test_repair_is_rejected_when_what_is_left_is_slower_than_required(mend: Mend) -> None:
    with pytest.raises(GateFailed, match=r"repair.min_speedup: .* must be > 1000 x"):
        mend(min_speedup=1000).raise_if_blocked()


def test_nothing_to_repair_is_said_when_the_recipe_quantized_nothing(
    workspace: Callable[..., Workspace], keep_model: Callable[..., tuple[Workspace, Artifact]], network: Network
) -> None:
    """A model of one Exp has no node that the quantizer takes."""
    from gauntlet.calibration.ranges import Ranges

    text = "exp (float[n,3,32,32] input) => (float[n,3,32,32] y) { [exp] y = Exp(input) }"
    proto = onnx_text.model(text, opset=17)
    signature_from_graph(proto).write(proto)
    out, model = keep_model(proto, network.trained.store)
    file = Ranges(images=1, methods={RECIPE.calibration_method.name: {"input": (0.0, 1.0), "y": (0.0, 1.0)}}).write(
        out.folder / "ranges.json"
    )
    report = repair(
        RepairConfig(),
        workspace(network.trained.store),
        recipe=RECIPE,
        accuracy=LIMITS,
        model=model,
        quantized=model,  # the quantizer left it as it was
        prepared=model,
        ranges=out.store_file(file),
        images=network.trained.artifacts["validation"],
        test=network.trained.test,
    )
    assert report.facts.stopped == "nothing to repair"
    with pytest.raises(GateFailed, match=r"repair.nodes: 0 must be > 0.*nothing to repair"):
        report.raise_if_blocked()


def largest_weight(network: Network, model: Artifact) -> int:
    proto = onnx.load(network.trained.store.path(model))
    stored = [numpy_helper.to_array(t) for t in proto.graph.initializer if t.data_type == onnx.TensorProto.INT8]
    return max(int(np.abs(array.astype(int)).max()) for array in stored if array.ndim > 1)


def test_weights_get_seven_bits_before_any_node_is_left_in_float_when_sums_saturate(
    network: Network, workspace: Callable[..., Workspace]
) -> None:
    out = workspace(network.trained.store)
    report = mended(network, out, LIMITS, HASWELL)
    facts = report.facts
    assert facts.seven_bit
    assert [bool(attempt.float_nodes) for attempt in facts.trials] == [False, *[True] * (len(facts.trials) - 1)]
    assert facts.trials[-1].good
    assert largest_weight(network, network.quantized) == 127
    assert largest_weight(network, report.artifacts["model"]) == 64
    check = next(c for c in report.checks if c.name == "repair.within_limits")
    assert f"7-bit weights, {len(facts.float_nodes)} of {facts.nodes} nodes in float" in check.detail


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


def test_recipe_is_not_repaired_when_its_seven_bit_form_is_a_candidate_too() -> None:
    plain, seven_bit = StaticInt8(), StaticInt8(reduce_range=True)
    config, both = RepairConfig(), (plain, seven_bit)
    assert [config.can_repair(recipe, both, HASWELL) for recipe in both] == [False, True]
    assert [config.can_repair(recipe, both, CASCADE_LAKE) for recipe in both] == [True, True]
    assert config.can_repair(plain, (plain,), HASWELL)


ON_HASWELL = """
import sys
from pathlib import Path
from tasks.accuracy import AccuracyConfig
from gauntlet.core.artifact import Artifact, Store
from tasks.quantize.static import StaticInt8
from tasks.repair import RepairConfig, repair
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


def mended_on_haswell(network: Network, folder: Path) -> RepairFacts:
    folder.mkdir()
    artifacts = [network.model, network.quantized, network.calibrated["prepared"], network.calibrated["ranges"]]
    artifacts += [network.trained.artifacts["validation"], network.trained.test]
    values = [value.model_dump_json() for value in (network.recipe, LIMITS, *artifacts)]
    told = on_haswell(ON_HASWELL, network.trained.store.root, folder, *values)
    return Report[RepairFacts].model_validate_json(told.splitlines()[-1]).facts


@pytest.mark.slow
def test_prediction_is_what_a_processor_gives_when_its_sums_saturate(network: Network, tmp_path: Path) -> None:
    facts = mended_on_haswell(network, tmp_path / "work")
    assert facts.trials[-1].good
    for attempt in facts.trials:
        assert attempt.quality.sqnr_db == pytest.approx(attempt.predicted.sqnr_db, abs=1)


@pytest.mark.slow
def test_seven_bits_are_enough_when_only_saturation_costs_accuracy(trained: Trained, tmp_path: Path) -> None:
    """Every node stays in integers: the model is as small and as fast as it was."""
    facts = mended_on_haswell(quantized(trained, tmp_path, trained.proto(), StaticInt8()), tmp_path / "work")
    assert facts.before is not None
    assert facts.before.sqnr_db < LIMITS.min_sqnr_db
    [attempt] = facts.trials
    assert (attempt.good, attempt.float_nodes, facts.ranked) == (True, (), 0)
    assert attempt.quality.sqnr_db == pytest.approx(attempt.predicted.sqnr_db, abs=1)
