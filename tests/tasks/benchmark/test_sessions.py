"""Session options race with the candidates: nonsense is refused, and another one is taken only when it is proven."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from pydantic import ValidationError

from tasks.artifact import Artifact
from tasks.benchmark import BenchmarkConfig, BenchmarkFacts, benchmark
from tasks.benchmark.contender import Contender, Entry, Plan
from tasks.benchmark.elimination import Drop
from tasks.benchmark.race import _drop
from tasks.benchmark.rows import rows
from tasks.benchmark.sessions import described, preferred
from tasks.data.golden import Case, Golden
from tasks.errors import ConfigError
from tasks.runtime.engines.ort import Loaded
from tasks.select import SelectConfig, select
from tasks.targets.ort_cpu import OrtCpu
from tasks.workspace import Workspace

SIZE = 64


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"sessions": [{}]}, "ort-cpu is there twice, or is the first target"),
        ({"sessions": [{"arena": False}, {"arena": False}]}, "ort-cpu-noarena is there twice"),
        ({"sessions": [{"parallel": True, "threads": 1}]}, "branches run side by side on two threads or more"),
        ({"sessions": [{"threads": 0}]}, "greater than or equal to 1"),
        ({"sessions": [{"spin": False}]}, "Extra inputs"),
        ({"sessions": [{"kind": "ort-cuda"}]}, "Input should be 'ort-cpu'"),
        ({"sessions": [{"threads": 1, "env": "openvino"}]}, "a session in another one is a further target"),
    ],
)
def test_sessions_are_refused_when_they_make_no_sense(settings: dict[str, object], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        BenchmarkConfig.model_validate(settings)


def test_sessions_are_refused_when_the_machine_makes_them_nonsense() -> None:
    with pytest.raises(ConfigError, match=r"ort-cpu-8t asks for 8 threads, and this process may use 2"):
        described((OrtCpu(), OrtCpu(threads=8)), threads=2, usable=2)
    with pytest.raises(ConfigError, match=r"ort-cpu-2t is the same as ort-cpu here"):
        described((OrtCpu(), OrtCpu(threads=2)), threads=2, usable=2)


def test_sessions_have_a_name_and_the_options_that_somebody_sets() -> None:
    config = BenchmarkConfig.model_validate({"sessions": [{"threads": 1, "spinning": False}, {"parallel": True}]})
    assert BenchmarkConfig.model_validate_json(config.model_dump_json()) == config
    first, second, third = described(config.all_sessions, threads=4, usable=4)
    assert (first.name, second.name, third.name) == ("ort-cpu", "ort-cpu-1t-nospin", "ort-cpu-parallel")
    assert first.options == {
        "graph_optimization_level": "ORT_ENABLE_ALL", "intra_op_num_threads": 4, "enable_cpu_mem_arena": True,
    }  # fmt: skip
    assert second.options["intra_op_num_threads"] == 1
    assert second.options["session.intra_op.allow_spinning"] == "0"
    assert (third.options["execution_mode"], third.options["inter_op_num_threads"]) == ("ORT_PARALLEL", 4)


def test_session_gets_its_options_when_the_worker_loads_it(tmp_path: Path) -> None:
    onnx.save(turning(2), tmp_path / "model.onnx")
    target = OrtCpu(threads=2, spinning=False, arena=False, parallel=True, level="extended")
    got = Loaded(tmp_path / "model.onnx", 1, target.options()).session.get_session_options()
    for name, value in target.session_options(1).items():
        found = got.get_session_config_entry(name) if "." in name else getattr(got, name)
        assert getattr(found, "name", found) == value


def contender(name: str, times_ms: list[float], *, dropped: bool = False, error: str | None = None) -> Contender:
    made = Contender(name, Entry(model=Path(), target=name), worker=None)  # type: ignore[arg-type] - it was measured
    made.round_medians_ms = made.round_quartiles_ms = made.calls_ms = {1: times_ms}
    made.energy_mj = {1: []}
    made.dropped, made.error = {1: Drop(len(times_ms), "other")} if dropped else {}, error
    return made


def test_another_session_is_taken_when_it_is_proven_faster_than_the_first() -> None:
    random = np.random.default_rng(0)

    def times(cost: float, rounds: int = 16) -> list[float]:
        return list(cost * np.exp(0.02 * random.standard_normal(rounds)))

    first = contender("first", times(3.0))
    same, better, best = contender("same", times(2.99)), contender("better", times(2.7)), contender("best", times(2.4))
    assert preferred([first, same], 1, 0.005) is first
    assert preferred([first, same, better, best], 1, 0.005) is best
    slow = contender("slow", times(9.0, 3), dropped=True)
    assert preferred([slow, best, better], 1, 0.005) is best  # it has left the race, so it is none to compare with
    assert preferred([slow, contender("slower", times(12.0, 3), dropped=True)], 1, 0.005) is slow
    broken = contender("broken", [], error="it broke")
    assert preferred([broken, slow], 1, 0.005) is slow
    assert preferred([broken], 1, 0.005) is broken


def test_sessions_are_compared_when_they_left_the_race_in_different_rounds() -> None:
    first, other = contender("first", [1.0] * 16), contender("other", [0.5] * 16)
    for one, times in ((first, [8.0] * 3), (other, [4.0] * 16)):
        one.round_medians_ms[8] = one.round_quartiles_ms[8] = times
        one.energy_mj[8] = []
    first.dropped[8] = Drop(3, "another")
    assert preferred([first, other], 1, 0.005) is other
    assert preferred([other, first], 1, 0.005) is other
    [_, row] = rows(other, first, resolution=0.005)
    assert (row.batch, round(row.speedup, 6)) == (8, 2.0)


def test_session_leaves_at_every_batch_size_when_it_gains_nothing_at_the_first() -> None:
    times = {"fp32": 1.0, "file": 0.5, "session": 0.5, "better": 0.4}
    running = [contender(name, [cost] * 4) for name, cost in times.items()]
    for one in running:
        one.round_quartiles_ms[8] = [8 * value for value in one.round_quartiles_ms[1][1:]]
        one.energy_mj[8] = []
    for one in running[2:]:
        one.entry = replace(one.entry, usual="file")
    plan = Plan(batch_sizes=(1, 8), rounds=16, block_ms=1, threads=1, timeout_s=60)
    _drop(running, 8, ["fp32"], 4, plan)
    assert {one.name: [*one.dropped] for one in running} == {"fp32": [], "file": [8], "session": [8], "better": []}
    for one in running:
        one.dropped.clear()
    _drop([running[0], *running[1:3]], 1, ["fp32"], 4, plan)
    assert {one.name for one in running if one.dropped} == {"session"}
    assert running[2].dropped == {1: Drop(4, "file", "no faster"), 8: Drop(3, "file", "no faster")}
    [row, _] = rows(running[2], running[0], resolution=0.005)
    assert (row.verdict, row.dropped_as, row.dropped_for, row.speedup) == ("faster", "no faster", "file", 2)
    assert row.more_rounds is None


def turning(pairs: int) -> onnx.ModelProto:
    """Return a model that turns its input over and back again, which a session with optimisation leaves out."""
    nodes, name = [], "x"
    for i in range(2 * pairs):
        nodes.append(helper.make_node("Transpose", [name], [f"t{i}"], perm=[0, 2, 1]))
        name = f"t{i}"
    nodes.append(helper.make_node("Relu", [name], ["y"]))
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", SIZE, SIZE]) for n in "xy")
    graph = helper.make_graph(nodes, "turning", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


@pytest.fixture
def race(workspace: Callable[..., Workspace]) -> Callable[..., BenchmarkFacts]:
    def run(pairs: dict[str, int], **config: object) -> BenchmarkFacts:
        out = workspace()
        kept: dict[str, Artifact] = {}
        for name, count in pairs.items():
            onnx.save(turning(count), out.folder / f"{name}.onnx")
            kept[name] = out.keep(out.folder / f"{name}.onnx")
        x = np.random.default_rng(0).standard_normal((2, SIZE, SIZE)).astype(np.float32)
        Golden({"real": Case({"x": x}, {"y": x})}, {"y": x}).save(out.folder / "golden.npz")
        settings = {"block_ms": 4, "threads": 1, "timeout_s": 60, "batch_sizes": (1,), "profile": False} | config
        golden = out.keep(out.folder / "golden.npz")
        return benchmark(BenchmarkConfig.model_validate(settings), out, models=kept, golden=golden).facts

    return run


def test_winner_bears_its_session_when_that_is_the_fastest(race, workspace: Callable[..., Workspace]) -> None:
    unoptimised = {"kind": "ort-cpu", "level": "off"}
    facts = race({"fp32": 40, "candidate": 8}, targets=[unoptimised], sessions=[{}], rounds=7, early_drop=False)
    for result in facts.results:
        assert result.target == "ort-cpu"
        assert [row.target for row in result.rows] == ["ort-cpu", "ort-cpu-off"]
        assert result.rows[0].speedup > result.rows[1].speedup
    chosen = select(SelectConfig(), workspace(), race=facts).facts
    assert chosen.session == facts.session(chosen.winner)
    assert chosen.session.options["graph_optimization_level"] == "ORT_ENABLE_ALL"
    assert chosen.reason.endswith("at batch 1, in the session ort-cpu")


def test_reference_wins_when_it_is_fastest_in_another_session(race, workspace: Callable[..., Workspace]) -> None:
    unoptimised = {"kind": "ort-cpu", "level": "off"}
    facts = race({"fp32": 40}, targets=[unoptimised], sessions=[{}], rounds=7, early_drop=False)
    chosen = select(SelectConfig(), workspace(), race=facts).facts
    assert chosen.winner == "fp32"
    assert chosen.session.name == "ort-cpu"
    assert "the speed of fp32 at batch 1, in the session ort-cpu" in chosen.reason


@pytest.mark.slow
def test_racing_sessions_has_the_winner_of_the_whole_race_for_half_the_rounds(race) -> None:
    """Two models are as fast as each other where the session leaves the work out, so only the session is compared."""
    models = {"fp32": 60, "a": 40, "b": 30, "c": 20}
    settings = {"targets": [{"kind": "ort-cpu", "level": "off"}], "rounds": 16}
    settings |= {"sessions": [{"level": "off", "arena": False}, {}]}
    whole, early = race(models, **settings, early_drop=False), race(models, **settings, early_drop=True)
    for facts in (whole, early):
        assert {result.target for result in facts.results} == {"ort-cpu"}

    def blocks(facts: BenchmarkFacts) -> int:
        return sum(row.dropped_after_round or facts.rounds for result in facts.results for row in result.rows)

    assert blocks(early) < 0.7 * blocks(whole)
