"""Further targets that the winner may be shipped on: raced with all others, after the accuracy was proven there too."""

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from pydantic import ValidationError

from configs.schema import PipelineConfig
from tasks.accuracy import AccuracyConfig
from tasks.artifact import Artifact
from tasks.benchmark import BenchmarkConfig, BenchmarkFacts, benchmark
from tasks.data.golden import Case, Golden
from tasks.report import Report
from tasks.select import Exactness, SelectConfig, select
from tasks.signature import describe
from tasks.workspace import Workspace

SIZE = 64
SLOW, FAST = {"kind": "ort-cpu", "level": "off"}, {"kind": "ort-cpu"}


def turning(pairs: int) -> onnx.ModelProto:
    """Return a model that turns its input over and back again, which a session with optimisation leaves out."""
    nodes, name = [], "x"
    for i in range(2 * pairs):
        nodes.append(helper.make_node("Transpose", [name], [f"t{i}"], perm=[0, 2, 1]))
        name = f"t{i}"
    nodes.append(helper.make_node("ReduceMax", [name], ["y"], axes=[2], keepdims=0))
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", SIZE, SIZE])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", SIZE])
    graph = helper.make_graph(nodes, "turning", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    describe(model).replace(labels=tuple(map(str, range(SIZE)))).write(model)
    return model


@pytest.fixture
def race(workspace: Callable[..., Workspace]) -> Callable[..., Report[BenchmarkFacts]]:
    def run(*, answers_change: bool = False, **config: object) -> Report[BenchmarkFacts]:
        out = workspace()
        models: dict[str, Artifact] = {}
        for name, pairs in {"fp32": 40, "candidate": 30}.items():
            onnx.save(turning(pairs), out.folder / f"{name}.onnx")
            models[name] = out.keep(out.folder / f"{name}.onnx")
        x = np.random.default_rng(0).standard_normal((20, SIZE, SIZE)).astype(np.float32)
        right = x.max(axis=2)
        labels = right.argmax(axis=1)
        before = right if not answers_change else np.eye(SIZE, dtype=np.float32)[labels]
        real = Case({"x": x[:2]}, {"y": right[:2]})
        np.savez(out.folder / "test.npz", x=-x if answers_change else x, labels=labels)
        Golden({"real": real}, {"y": before}, labels=labels).save(out.folder / "golden.npz")
        settings = {"block_ms": 4, "threads": 1, "timeout_s": 60, "batch_sizes": (1,), "profile": False, "rounds": 6}
        return benchmark(
            BenchmarkConfig.model_validate(settings | {"targets": [SLOW, FAST], "also_ship_on": ["ort-cpu"]} | config),
            out,
            models=models,
            golden=out.keep(out.folder / "golden.npz"),
            test=out.keep(out.folder / "test.npz"),
            limits=AccuracyConfig(),
        )

    return run


def test_winner_is_shipped_on_a_further_target_when_it_is_fastest_there(race, workspace) -> None:
    report = race(early_drop=False)
    facts = report.facts
    for result in facts.results:
        assert result.target == "ort-cpu"
        assert [row.target for row in result.rows] == ["ort-cpu", "ort-cpu-off"]
        assert facts.session(result.candidate) is None
    known = {name: Exactness(network="fp32", sqnr_db=100.0) for name in ("candidate",)}
    chosen = select(SelectConfig(), workspace(), race=facts, exactness=known).facts
    assert (chosen.target, chosen.session) == ("ort-cpu", None)
    assert chosen.reason.split("; ")[0].endswith("at batch 1, on ort-cpu")
    names = [check.name for one in facts.elsewhere if one.truth for check in one.truth.checks]
    assert names.count("accuracy.max_accuracy_drop") == 2
    assert next(check for check in report.checks if check.name == "benchmark.absent_targets").passed


@pytest.mark.slow
def test_further_target_decides_nothing_when_nobody_may_ship_on_it(race, workspace) -> None:
    facts = race(also_ship_on=[]).facts
    assert {result.target for result in facts.results} == {"ort-cpu-off"}
    chosen = select(SelectConfig(), workspace(), race=facts).facts
    assert chosen.target == "ort-cpu-off"
    assert chosen.session is not None
    names = [check.name for one in facts.elsewhere if one.truth for check in one.truth.checks]
    assert names, "it was examined all the same"
    assert "accuracy.max_accuracy_drop" not in names


def test_candidate_is_not_raced_where_its_answers_are_worse(race) -> None:
    report = race(answers_change=True)
    facts = report.facts
    assert {result.target for result in facts.results} == {"ort-cpu-off"}
    assert all([row.target for row in result.rows] == ["ort-cpu-off"] for result in facts.results)
    for one in facts.elsewhere:
        assert one.target == "ort-cpu"
        assert "accuracy.max_accuracy_drop" in str(one.reason)
    warned = [check for check in report.checks if check.name == "accuracy.max_accuracy_drop"]
    assert len(warned) == 2
    assert all(check.severity == "warning" and not check.passed for check in warned)
    assert warned[0].detail.startswith("fp32 on ort-cpu: ")


def test_race_warns_when_a_target_cannot_run_here(race, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GAUNTLET_HOME", str(tmp_path / "home"))
    report = race(targets=[SLOW, "openvino-f32"], also_ship_on=["openvino-f32"])
    [check] = [check for check in report.checks if check.name == "benchmark.absent_targets"]
    assert (check.value, check.severity, check.passed) == (1, "warning", False)
    assert check.detail.startswith("openvino-f32: its environment is not installed")
    assert {result.target for result in report.facts.results} == {"ort-cpu-off"}


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"also_ship_on": ["openvino-f32"]}, "'openvino-f32' is none of the further benchmark.targets (none so far"),
        (
            {"targets": ["ort-cpu", "ort-cuda"], "also_ship_on": ["ort-cpu"]},
            "'ort-cpu' is none of the further benchmark.targets (ort-cuda)",
        ),
        ({"targets": ["ort-cpu", "torch-eager"], "also_ship_on": ["torch-eager"]}, "torch-eager runs no ONNX file"),
    ],
)
def test_shipping_is_refused_when_it_makes_no_sense(settings: dict[str, object], told: str) -> None:
    with pytest.raises(ValidationError) as error:
        BenchmarkConfig.model_validate(settings)
    assert told in str(error.value)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"select": {"batch": 8}}, "benchmark.also_ship_on are compared at the first of"),
        ({"loadgen": [{"scenario": "Offline"}]}, "benchmark.also_ship_on names 'openvino-f32', which runs in another"),
    ],
)
def test_pipeline_refuses_what_shipping_elsewhere_cannot_do(settings: dict[str, object], told: str) -> None:
    shipped = {"benchmark": {"targets": ["ort-cpu", "openvino-f32"], "also_ship_on": ["openvino-f32"]}}
    PipelineConfig.model_validate({"name": "x", **shipped})
    with pytest.raises(ValidationError) as error:
        PipelineConfig.model_validate({"name": "x", **shipped, **settings})
    assert told in str(error.value)
