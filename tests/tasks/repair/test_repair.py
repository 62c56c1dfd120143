"""A network whose INT8 form collapses is repaired; how, is read from what the stage reports and leaves behind."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from conftest import Trained
from onnx import numpy_helper

from tasks.accuracy import AccuracyConfig, check_accuracy
from tasks.artifact import Artifact, Store
from tasks.calibrate import CalibrateConfig, calibrate
from tasks.errors import GateFailed
from tasks.quantize import quantize
from tasks.quantize.static import StaticInt8
from tasks.repair import RepairConfig, RepairFacts, repair
from tasks.report import Report
from tasks.signature import describe
from tasks.workspace import Workspace

RECIPE = StaticInt8(per_channel=False)
Mend = Callable[..., Report[RepairFacts]]
LIMITS = AccuracyConfig(max_accuracy_drop=0.01, min_sqnr_db=20)
GOOD = {"paired": None, "top1_agreement": 1, "cosine": 1}
"""Answers that lost nothing, but for their noise."""


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
class Uneven:
    """The network, its calibration, and the stages on it."""

    trained: Trained
    model: Artifact
    quantized: Artifact
    calibrated: dict[str, Artifact]
    convolutions: tuple[str, ...]


@pytest.fixture(scope="module")
def network(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> Uneven:
    root = tmp_path_factory.mktemp("uneven")
    for name in ("start", "calibrate", "quantize"):
        (root / name).mkdir()
    start = Workspace(trained.store, root / "start")
    onnx.save(uneven(trained.proto(), layer=1), start.folder / "model.onnx")
    model = start.keep(start.folder / "model.onnx")
    report = calibrate(
        CalibrateConfig(),
        Workspace(trained.store, root / "calibrate"),
        model=model,
        calibration=trained.artifacts["calibration"],
        test=trained.test,
        methods=(RECIPE.method,),
    )
    prepared = onnx.load(trained.store.path(report.artifacts["prepared"]))
    naive = quantize(RECIPE, Workspace(trained.store, root / "quantize"), model=model, **report.artifacts)
    return Uneven(
        trained,
        model,
        naive.artifacts["model"],
        dict(report.artifacts),
        tuple(n.name for n in prepared.graph.node if n.op_type == "Conv"),
    )


def mended(
    network: Uneven, out: Workspace, limits: AccuracyConfig, journal: str = "", **config: object
) -> Report[RepairFacts]:
    (out.folder / "journal.jsonl").write_text(journal)
    return repair(
        RepairConfig.model_validate(config),
        out,
        recipe=RECIPE,
        accuracy=limits,
        model=network.model,
        quantized=network.quantized,
        prepared=network.calibrated["prepared"],
        ranges=network.calibrated["ranges"],
        images=network.trained.artifacts["validation"],
        test=network.trained.test,
    )


@pytest.fixture
def mend(network: Uneven, workspace: Callable[..., Workspace]) -> Mend:
    def run(limits: AccuracyConfig = LIMITS, **how: Any) -> Report[RepairFacts]:
        return mended(network, workspace(network.trained.store), limits, **how)

    return run


@pytest.fixture(scope="module")
def plain(network: Uneven, tmp_path_factory: pytest.TempPathFactory) -> Report[RepairFacts]:
    """The repair with nothing set."""
    return mended(network, Workspace(network.trained.store, tmp_path_factory.mktemp("plain")), LIMITS)


def judged(network: Uneven, workspace: Callable[..., Workspace], model: Artifact) -> Report[object]:
    trained = network.trained
    return check_accuracy(LIMITS, workspace(trained.store), model=model, golden=trained.golden, test=trained.test)  # type: ignore[return-value]


def test_collapsed_network_passes_its_gate_when_it_is_repaired(
    network: Uneven, workspace: Callable[..., Workspace], plain: Report[RepairFacts]
) -> None:
    with pytest.raises(GateFailed, match=r"accuracy\.(max_accuracy_drop|min_sqnr_db)"):
        judged(network, workspace, network.quantized).enforce()

    facts = plain.facts
    judged(network, workspace, plain.artifacts["model"]).enforce()
    assert facts.attempts[-1].good
    assert len(facts.attempts) <= 2
    # The uneven channels lie between these two; the other layers stay in integers.
    assert set(facts.float_nodes) & set(network.convolutions[1:])
    assert network.convolutions[0] not in facts.float_nodes
    assert facts.before is not None
    assert facts.before.sqnr_db < LIMITS.min_sqnr_db <= facts.attempts[-1].quality.sqnr_db


def test_prediction_is_what_the_real_quantiser_gives(mend: Mend) -> None:
    report = mend(predicting_images=256)
    assert report.facts.images == 180
    attempt = report.facts.attempts[0]
    assert attempt.quality.sqnr_db == pytest.approx(attempt.predicted.sqnr_db, abs=1)


def test_set_is_judged_by_the_gate_alone_when_a_prediction_must_reach_more(
    mend: Mend, plain: Report[RepairFacts]
) -> None:
    """An earlier search has found its first set too bad, and predicts too much of a larger one."""
    found = plain.facts
    ranking, first = [r.node for r in found.ranking], found.attempts[0]
    size = 1
    while set(ranking[:size]) <= set(first.float_nodes) or not set(first.float_nodes) <= set(ranking[:size]):
        size *= 2
    failed = json.loads(first.model_copy(update={"good": False, "speed": None}).model_dump_json())
    known = {
        f"evaluated {' '.join(sorted(first.float_nodes))}": failed,
        f"without {' '.join(sorted(ranking[:size]))}": GOOD | {"sqnr_db": 1000},
    }
    facts = mend(journal=known_from(known), margin_db=100).facts
    assert [attempt.good for attempt in facts.attempts] == [False, True]
    assert LIMITS.min_sqnr_db <= facts.attempts[1].quality.sqnr_db < LIMITS.min_sqnr_db + 100


def known_from(answers: dict[str, object]) -> str:
    """Return the journal of an earlier search."""
    return "".join(json.dumps({"question": q, "answer": a, "seconds": 0}) + "\n" for q, a in answers.items())


def test_one_set_is_evaluated_and_no_more_asked_when_the_budget_is_used_up(
    mend: Mend,
) -> None:
    report = mend(AccuracyConfig(min_sqnr_db=1000), budget_s=1e-9)
    facts = report.facts
    assert (facts.stopped, facts.ranked, len(facts.attempts)) == ("time used up", 0, 1)
    assert len(facts.attempts[0].float_nodes) == 1
    assert report.artifacts["model"].size_bytes > 0


def test_fallen_short_is_told_and_numbers_that_are_none_are_the_worst(mend: Mend, plain: Report[RepairFacts]) -> None:
    """As on a processor whose sums saturate: what is evaluated is far from what was predicted."""
    first = plain.facts.attempts[0]
    *others, last = [r.node for r in plain.facts.ranking]
    ranking, size = [last, *others], 1
    while not set(first.float_nodes) < set(ranking[:size]):
        size *= 2
    second = tuple(ranking[:size])

    def evaluated(nodes: tuple[str, ...], sqnr_db: object) -> dict[str, object]:
        predicted = first.predicted.model_dump(mode="json")
        told = {"float_nodes": nodes, "good": False, "speed": None, "predicted": predicted}
        return {f"evaluated {' '.join(sorted(nodes))}": told | {"quality": GOOD | {"sqnr_db": sqnr_db}}}

    known = {f"alone {last}": GOOD | {"sqnr_db": "NaN"}} | evaluated(first.float_nodes, "NaN") | evaluated(second, 3.0)
    known[f"without {' '.join(sorted(second))}"] = GOOD | {"sqnr_db": 1000}
    report = mend(journal=known_from(known), max_evaluations=2, margin_db=100)
    assert report.facts.ranking[0].node == last
    assert [a.quality.sqnr_db for a in report.facts.attempts] == [pytest.approx(np.nan, nan_ok=True), 3]
    assert set(report.facts.float_nodes) == set(second)
    assert report.facts.stopped == "evaluations used up"
    check = next(c for c in report.checks if c.name == "repair.good")
    assert (check.passed, check.severity) == (False, "warning")
    assert "more noise than predicted" in check.remedy


def test_set_that_fell_short_is_not_evaluated_again_when_no_noise_was_predicted(
    mend: Mend, plain: Report[RepairFacts]
) -> None:
    """So it is where a model's only output is a class: its answers have no noise that could tell what is lacking."""
    first = plain.facts.attempts[0]
    failed = first.model_dump(mode="json") | {"good": False, "speed": None}
    nodes = " ".join(sorted(first.float_nodes))
    known = {f"evaluated {nodes}": failed, f"without {nodes}": GOOD | {"sqnr_db": "Infinity"}}
    facts = mend(journal=known_from(known)).facts
    assert set(facts.attempts[1].float_nodes) - set(first.float_nodes)
    assert facts.attempts[1].good


def test_model_that_answers_only_a_class_is_repaired_by_its_accuracy(
    network: Uneven, workspace: Callable[..., Workspace]
) -> None:
    out = workspace(network.trained.store)

    def classifying(model: Artifact, name: str) -> Artifact:
        proto = onnx.load(out.path(model))
        scores = proto.graph.output.pop()
        proto.graph.node.append(
            onnx.helper.make_node("ArgMax", [scores.name], ["class"], name="class", axis=1, keepdims=0)
        )
        proto.graph.output.append(onnx.helper.make_tensor_value_info("class", onnx.TensorProto.INT64, ["n"]))
        describe(proto).write(proto)
        onnx.save(proto, out.folder / name)
        return out.keep(out.folder / name)

    prepared = classifying(network.calibrated["prepared"], "prepared.onnx")
    changed = {"model": classifying(network.model, "m.onnx"), "quantized": classifying(network.quantized, "q.onnx")}
    calibrated = {**network.calibrated, "prepared": prepared}
    facts = mended(replace(network, calibrated=calibrated, **changed), workspace(network.trained.store), LIMITS).facts
    assert facts.before is not None
    assert facts.before.paired is not None
    assert facts.before.paired.drop > LIMITS.max_accuracy_drop
    assert facts.attempts[-1].good
    assert 0 < len(facts.float_nodes) < facts.nodes


def test_repair_says_so_when_not_even_floats_are_good_enough(mend: Mend) -> None:
    """The test split is too small to prove what is asked for, whatever a model answers."""
    report = mend(AccuracyConfig(max_accuracy_drop=0.001, unresolved="reject"))
    assert (report.facts.stopped, len(report.facts.attempts)) == ("not even in float", 1)
    check = next(c for c in report.checks if c.name == "repair.good")
    assert not check.passed
    assert check.remedy.startswith("loosen the limits")


def test_repair_is_rejected_when_what_is_left_is_slower_than_required(mend: Mend) -> None:
    with pytest.raises(GateFailed, match=r"repair.min_speedup: .* must be > 1000 x"):
        mend(min_speedup=1000).enforce()


def test_nothing_to_repair_is_said_when_the_recipe_quantised_nothing(
    workspace: Callable[..., Workspace], keep_model: Callable[..., tuple[Workspace, Artifact]], network: Uneven
) -> None:
    """A model of one Exp has no node that the quantiser takes."""
    from onnx import TensorProto, helper

    from tasks.ranges import Ranges

    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 3, 32, 32]) for n in ("input", "y")]
    graph = helper.make_graph([helper.make_node("Exp", ["input"], ["y"], name="exp")], "g", values[:1], values[1:])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    describe(proto).write(proto)
    out, model = keep_model(proto, network.trained.store)
    file = Ranges(images=1, methods={RECIPE.method.name: {"input": (0.0, 1.0), "y": (0.0, 1.0)}}).write(
        out.folder / "ranges.json"
    )
    report = repair(
        RepairConfig(),
        workspace(network.trained.store),
        recipe=RECIPE,
        accuracy=LIMITS,
        model=model,
        quantized=model,  # the quantiser left it as it was
        prepared=model,
        ranges=out.keep(file),
        images=network.trained.artifacts["validation"],
        test=network.trained.test,
    )
    assert report.facts.stopped == "nothing to repair"
    with pytest.raises(GateFailed, match=r"repair.nodes: 0 must be > 0.*nothing to repair"):
        report.enforce()


CHILD = """
import sys
from pathlib import Path
from tasks.accuracy import AccuracyConfig
from tasks.artifact import Artifact, Store
from tasks.quantize.static import StaticInt8
from tasks.repair import RepairConfig, repair
from tasks.workspace import Workspace

store, folder, *artifacts = sys.argv[1:]
model, quantized, prepared, ranges, images, test = (Artifact.model_validate_json(a) for a in artifacts)
report = repair(
    RepairConfig(), Workspace(Store(Path(store)), Path(folder)), recipe=StaticInt8(per_channel=False),
    accuracy=AccuracyConfig(max_accuracy_drop=0.01, min_sqnr_db=20),
    model=model, quantized=quantized, prepared=prepared, ranges=ranges, images=images, test=test,
)
print(report.model_dump_json())
"""


def test_killed_repair_goes_on_where_it_stopped(network: Uneven, tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    inputs = [network.model, network.quantized, network.calibrated["prepared"], network.calibrated["ranges"]]
    inputs += [network.trained.artifacts["validation"], network.trained.test]
    command = [sys.executable, "-c", CHILD, str(network.trained.store.root), str(folder)]
    command += [artifact.model_dump_json() for artifact in inputs]
    journal = folder / "journal.jsonl"

    killed = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 100
    while time.monotonic() < deadline and not (journal.exists() and journal.read_bytes().count(b"\n") >= 3):
        time.sleep(0.005)
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()
    known = journal.read_bytes().count(b"\n")
    assert known >= 3

    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=True)
    report = Report[RepairFacts].model_validate_json(done.stdout.splitlines()[-1])
    assert report.facts.resumed == known
    assert report.facts.attempts[-1].good
    questions = [line.split(b'"answer"')[0] for line in journal.read_bytes().splitlines()]
    assert len(set(questions)) == len(questions)
    assert Store(network.trained.store.root).intact(report.artifacts["model"])
