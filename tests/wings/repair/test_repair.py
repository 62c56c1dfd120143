"""A network whose INT8 form collapses is repaired; how, is read from the stage's facts, also where sums saturate."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_text
import pytest
from conftest import Trained
from harness import quick_config
from onnx import numpy_helper
from processors import CASCADE_LAKE, HASWELL, on_haswell
from uneven_networks import LIMITS, RECIPE, SATURATES, Mend, Network, mended, quantized, uneven

from configs.schema import PipelineConfig
from flows.record.home import Home
from flows.search.time_budget import TimeBudget
from gauntlet.calibration.ranges import Ranges
from gauntlet.core.artifact import Artifact
from gauntlet.core.errors import GateFailed, NotTried
from gauntlet.core.report import Report
from gauntlet.core.run_report import RunReport
from gauntlet.core.shipping import configured_stages
from gauntlet.core.signature import signature_from_graph
from gauntlet.core.workspace import Workspace
from gauntlet.runtime.processor import METADATA_KEY, Processor
from tasks.accuracy import AccuracyConfig, accuracy
from tasks.quantize.static import StaticInt8
from wings.repair import RepairFacts

pytestmark = pytest.mark.slow


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
    # The uneven channels lie between these two; the other layers stay in integers where weights keep their eighth bit.
    assert set(facts.float_nodes) & set(network.convolutions[1:])
    assert SATURATES or network.convolutions[0] not in facts.float_nodes
    assert facts.before.sqnr_db < LIMITS.min_sqnr_db <= facts.trials[-1].quality.sqnr_db


def test_file_for_other_runtimes_is_repaired_without_a_race(
    trained: Trained, workspace: Callable[..., Workspace], tmp_path: Path
) -> None:
    recipe = RECIPE.replace(qdq_placement="inputs")
    network = quantized(trained, tmp_path, uneven(trained.proto(), layer=1), recipe)
    report = mended(network, workspace(trained.store), LIMITS)
    facts = report.facts
    with pytest.raises(GateFailed, match=r"accuracy\.(max_accuracy_drop|min_sqnr_db)"):
        judged(network, workspace, network.quantized).raise_if_blocked()
    judged(network, workspace, report.artifacts["model"]).raise_if_blocked()
    assert (facts.stopped, facts.trials[-1].speed) == ("found", None)
    assert 0 < len(facts.float_nodes) < facts.nodes
    assert [check.name for check in report.checks] == ["repair.nodes", "repair.within_limits"]


@pytest.mark.parametrize("processor", [None, HASWELL])
def test_prediction_is_what_the_real_quantizer_gives(
    mend: Mend, processor: Processor | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wings.repair.trial.PREDICTION_IMAGES", 256)
    report = mend(processor=processor)
    assert report.facts.images == 180
    for attempt in report.facts.trials:
        assert attempt.quality.sqnr_db == pytest.approx(attempt.predicted.sqnr_db, abs=1)


@pytest.mark.parametrize(("processor", "float_nodes"), [(CASCADE_LAKE, ("/0/Conv", "/3/MaxPool")), (HASWELL, ())])
def test_one_set_is_evaluated_and_no_more_asked_when_the_budget_is_used_up(
    mend: Mend, processor: Processor, float_nodes: tuple[str, ...]
) -> None:
    report = mend(AccuracyConfig(min_sqnr_db=1000), budget_s=1e-9, processor=processor)
    facts = report.facts
    assert (facts.stopped, facts.ranked, len(facts.trials)) == ("time used up", 0, 1)
    assert facts.trials[0].float_nodes == float_nodes  # the first unit, or none where 7 bits are tried first
    assert report.artifacts["model"].size_bytes > 0
    check = next(c for c in report.checks if c.name == "repair.within_limits")
    assert (check.passed, check.severity) == (False, "warning")
    assert check.remedy == "raise repair.budget_s"


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
    assert facts.before.change.drop > LIMITS.max_accuracy_drop
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
    with pytest.raises(GateFailed, match=r"repair.nodes: 0 must be > 0; all \d+ nodes that could be integer"):
        report.raise_if_blocked()  # the float graph again is no candidate


def test_repair_is_rejected_when_what_is_left_is_slower_than_required(mend: Mend) -> None:
    with pytest.raises(GateFailed, match=r"repair.min_speedup: .* must be > 1000x"):
        mend(min_speedup=1000).raise_if_blocked()


def test_nothing_to_repair_is_said_when_the_recipe_quantized_nothing(
    workspace: Callable[..., Workspace], keep_model: Callable[..., tuple[Workspace, Artifact]], network: Network
) -> None:
    """A model of one Exp has no node that the quantizer takes."""
    text = "exp (float[n,3,32,32] input) => (float[n,3,32,32] y) { [exp] y = Exp(input) }"
    proto = onnx_text.model(text, opset=17)
    signature_from_graph(proto).write(proto)
    out, model = keep_model(proto, network.trained.store)
    ranges = Ranges(images=1, methods={RECIPE.calibration_method.name: {"input": (0.0, 1.0), "y": (0.0, 1.0)}})
    kept = out.store_file(ranges.write(out.folder / "ranges.json"))
    untouched = replace(network, model=model, quantized=model, calibrated={"prepared": model, "ranges": kept})
    report = mended(untouched, workspace(network.trained.store), LIMITS)
    assert report.facts.stopped == "nothing to repair"
    with pytest.raises(GateFailed, match=r"repair.nodes: 0 must be > 0; .* no node that could be left in float"):
        report.raise_if_blocked()


Run = Callable[[PipelineConfig], RunReport]
ONE_RECIPE = ("optimize=[]", "quantize=[{kind: static, reduce_range: true}]", "repair.enabled=true")


def test_rejected_candidate_is_repaired_and_takes_every_gate_again(
    run: Run, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    priorities = set[str]()
    monkeypatch.setattr("gauntlet.race.rounds.is_realtime", lambda priority: bool(priorities.add(priority)))
    first = run(quick_config(*ONE_RECIPE))
    plain = next(c for c in first.candidates if c.name == "static-u8s8-no-overflow")
    assert plain.sqnr_db is not None
    assert not any(c.name.endswith("-repaired") for c in first.candidates)
    [stem] = [c for c in first.candidates if c.name == "static-u8s8-no-overflow-float-stem"]
    assert stem.parent == plain.name
    assert (stem.status == "unchanged") == stem.reason.startswith("floats at the inputs save less than")

    # The machine says whether it is faster, and four layers may all be needed: both gates are overridden, under the
    # repaired candidate's own name.
    about = "reason: 'of a small network', candidate: static-u8s8-no-overflow-repaired"
    anyway = f"{{check: repair.min_speedup, {about}}}, {{check: repair.nodes, {about}}}"
    limit = f"accuracy.min_sqnr_db={plain.sqnr_db + 1}"
    two = "quantize=[{kind: static, reduce_range: true, per_channel: false}, {kind: static, reduce_range: true}]"
    priorities.clear()
    config = quick_config(*ONE_RECIPE, two, limit, f"overrides=[{anyway}]", "benchmark.priority=normal")
    brought = configured_stages(config, "quantized")
    report = run(config)
    assert priorities == {"normal"}  # in the repair's races, too
    by_name = {c.name: c for c in report.candidates}
    assert by_name["static-u8s8-no-overflow"].status == "rejected"
    assert "accuracy.min_sqnr_db" in by_name["static-u8s8-no-overflow"].reason
    [repaired] = [candidate for name, candidate in by_name.items() if name.endswith("-repaired")]
    assert plain.sqnr_db > by_name["static-u8s8-per-tensor-no-overflow"].sqnr_db  # the most exact is repaired
    assert repaired.parent == "static-u8s8-no-overflow"
    assert repaired.sqnr_db >= plain.sqnr_db + 1
    judged = [s.stage for s in report.stages if s.candidate == repaired.name]
    assert judged == ["repair", "structure", "accuracy", *brought]
    assert repaired.benchmark
    assert repaired.artifact is not None
    proto = onnx.load(home.store.path(repaired.artifact))
    assert (METADATA_KEY in {p.key for p in proto.metadata_props}) == bool(brought)


def test_most_exact_file_for_each_kind_of_runtimes_is_repaired_but_only_the_first_when_it_is_late(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: TimeBudget, key: str) -> None:
        raise NotTried(f"the time is used, not that of {key}")

    monkeypatch.setattr(TimeBudget, "require_repair", refuse)
    recipes = [
        StaticInt8(reduce_range=True, qdq_placement=placement, per_channel=per_channel)
        for placement in ("inputs_and_outputs", "inputs")
        for per_channel in (False, True)
    ]
    limits = ("accuracy.min_sqnr_db=1000", "repair.enabled=true", "repair.budget_s=0.001")
    config = quick_config("optimize=[]", "quantize=[{kind: static}]", *limits)
    report = run(config.replace(quantize=tuple(recipes)))
    sqnr_db = {candidate.name: candidate.sqnr_db for candidate in report.candidates}
    groups = ([recipe.name for recipe in recipes[:2]], [recipe.name for recipe in recipes[2:]])
    repaired = [candidate for candidate in report.candidates if candidate.name.endswith("-repaired")]
    assert {candidate.parent for candidate in repaired} == {max(names, key=sqnr_db.__getitem__) for names in groups}
    assert [candidate.status for candidate in repaired] == ["rejected", "not tried"]


def sum_of_weights(network: Network, model: Artifact) -> int:
    proto = onnx.load(network.trained.store.path(model))
    stored = [numpy_helper.to_array(t) for t in proto.graph.initializer if t.data_type == onnx.TensorProto.INT8]
    return sum(int(np.abs(array.astype(int)).sum()) for array in stored if array.ndim > 1)


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
    attempt = facts.trials[0]  # in a disturbed race it may look slow, and another one follows
    assert (attempt.good, attempt.float_nodes) == (True, ())
    assert attempt.quality.sqnr_db == pytest.approx(attempt.predicted.sqnr_db, abs=1)
