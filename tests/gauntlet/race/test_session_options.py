"""Session options race with the candidates: nonsense is refused, and another one is taken only when it is proven."""

import math
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import onnx_text
import pytest
from matmul_chains import stored_for_race
from pydantic import ValidationError

from gauntlet.core.errors import ConfigError
from gauntlet.core.workspace import Workspace
from gauntlet.race.contender import Contender, Entry, Plan
from gauntlet.race.early_stopping import EarlyStop
from gauntlet.race.rounds import _stop_early
from gauntlet.race.rows import rows
from gauntlet.race.session_options import best_session, describe_sessions
from gauntlet.targets.ort import OrtCpu, OrtTarget
from tasks.benchmark import BenchmarkConfig, benchmark
from tasks.benchmark.facts import BenchmarkFacts
from tasks.select import SelectConfig, choose

SIZE = 64
UNOPTIMIZED = {"targets": [{"kind": "ort-cpu", "level": "off"}], "session_variants": [{}]}
UNOPTIMIZED |= {"rounds": 7, "early_stopping": False}


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"session_variants": [{}]}, "ort-cpu is listed twice or equals the first target"),
        ({"session_variants": [{"arena": False}, {"arena": False}]}, "ort-cpu-noarena is listed twice"),
        ({"session_variants": [{"inter_op_threads": 2, "threads": 1}]}, "branches need at least two threads"),
        ({"session_variants": [{"threads": 1, "env": "openvino"}]}, "run in this Python environment"),
    ],
)
def test_sessions_are_refused_when_they_make_no_sense(settings: dict[str, object], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        BenchmarkConfig.model_validate(settings)


def test_sessions_are_refused_when_the_machine_makes_them_nonsense() -> None:
    with pytest.raises(ConfigError, match=r"ort-cpu-8t asks for 8 threads, and this process may use 2"):
        describe_sessions((OrtCpu(), OrtCpu(threads=8)), threads=2, usable=2)
    with pytest.raises(ConfigError, match=r"ort-cpu-2t is the same as ort-cpu here"):
        describe_sessions((OrtCpu(), OrtCpu(threads=2)), threads=2, usable=2)


def test_sessions_have_a_name_and_the_options_that_somebody_sets() -> None:
    config = BenchmarkConfig.model_validate(
        {"session_variants": [{"threads": 1, "spinning": False}, {"inter_op_threads": 4}]}
    )
    assert BenchmarkConfig.model_validate_json(config.model_dump_json()) == config
    first, second, third = describe_sessions(config.all_sessions, threads=4, usable=4)
    assert (first.name, second.name, third.name) == ("ort-cpu", "ort-cpu-1t-nospin", "ort-cpu-4branches")
    assert first.options == {
        "graph_optimization_level": "ORT_ENABLE_ALL", "intra_op_num_threads": 4, "enable_cpu_mem_arena": True,
    }  # fmt: skip
    assert second.options["intra_op_num_threads"] == 1
    assert second.options["session.intra_op.allow_spinning"] == "0"
    assert (third.options["execution_mode"], third.options["inter_op_num_threads"]) == ("ORT_PARALLEL", 4)


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"threads": 2}, ["ort-cpu", "ort-cpu-1t"]),
        ({"threads": 2, "targets": [{"kind": "ort-cpu", "arena": False}]}, ["ort-cpu-noarena", "ort-cpu-1t-noarena"]),
        ({"threads": 1}, ["ort-cpu"]),
        ({"threads": 2, "session_variants": []}, ["ort-cpu"]),
        ({"threads": 2, "targets": [{"kind": "ort-cpu", "inter_op_threads": 2}]}, ["ort-cpu-2branches"]),
        ({"threads": 2, "targets": ["ort-cpu", {"kind": "ort-cpu", "threads": 1}]}, ["ort-cpu"]),
    ],
)
def test_one_thread_is_a_session_variant_by_itself_where_the_first_session_has_more(
    settings: dict[str, object], names: list[str]
) -> None:
    assert [session.name for session in BenchmarkConfig.model_validate(settings).all_sessions] == names


def contender(name: str, times_ms: list[float], *, dropped: bool = False, error: str | None = None) -> Contender:
    made = Contender(name, Entry(model=Path(), target=name), worker=None)  # type: ignore[arg-type] - it was measured
    made.round_medians_ms = made.round_quartiles_ms = made.calls_ms = {1: times_ms}
    made.stopped, made.error = {1: EarlyStop(len(times_ms), "other")} if dropped else {}, error
    return made


def test_another_session_is_taken_when_it_is_proven_faster_than_the_first() -> None:
    random = np.random.default_rng(0)

    def times(cost: float, rounds: int = 16) -> list[float]:
        return list(cost * np.exp(0.02 * random.standard_normal(rounds)))

    first = contender("first", times(3.0))
    same, better, best = contender("same", times(2.99)), contender("better", times(2.7)), contender("best", times(2.4))
    assert best_session([first, same], 1, 0.005) is first
    assert best_session([first, same, better, best], 1, 0.005) is best
    slow = contender("slow", times(9.0, 3), dropped=True)
    assert best_session([slow, best, better], 1, 0.005) is best  # it has left the race, so it is none to compare with
    assert best_session([slow, contender("slower", times(12.0, 3), dropped=True)], 1, 0.005) is slow
    broken = contender("broken", [], error="it broke")
    assert best_session([broken, slow], 1, 0.005) is slow
    assert best_session([broken], 1, 0.005) is broken


def test_session_that_needs_less_memory_is_taken_for_that_objective_unless_it_is_slower() -> None:
    def measured(name: str, cost_ms: float, peak_mb: int) -> Contender:
        made = contender(name, [cost_ms] * 16)
        made.round_peak_bytes, made.processes = [peak_mb * 1_000_000] * 16, 16
        return made

    first, fast = measured("first", 1.0, 200), measured("fast", 0.5, 210)
    lean, leanest = measured("lean", 1.0, 150), measured("leanest", 2.0, 100)
    assert best_session([first, fast, lean, leanest], 1, 0.005) is fast
    assert best_session([first, fast, lean, leanest], 1, 0.005, "memory") is lean
    assert best_session([first, fast, leanest], 1, 0.005, "memory") is first
    lean.processes = 1  # one process in all rounds has one peak
    assert best_session([first, lean], 1, 0.005, "memory") is first


def test_sessions_are_compared_when_they_left_the_race_in_different_rounds() -> None:
    first, other = contender("first", [1.0] * 16), contender("other", [0.5] * 16)
    for one, times in ((first, [8.0] * 3), (other, [4.0] * 16)):
        one.round_medians_ms[8] = one.round_quartiles_ms[8] = times
    first.stopped[8] = EarlyStop(3, "another")
    assert best_session([first, other], 1, 0.005) is other
    assert best_session([other, first], 1, 0.005) is other
    [_, row] = rows(other, first, resolution=0.005)
    assert (row.batch, round(row.speedup, 6)) == (8, 2.0)


def test_session_leaves_at_every_batch_size_when_it_gains_nothing_at_the_first() -> None:
    times = {"fp32": 1.0, "file": 0.5, "session": 0.5, "better": 0.4}
    running = [contender(name, [cost] * 4) for name, cost in times.items()]
    for one in running:
        one.round_quartiles_ms[8] = [8 * value for value in one.round_quartiles_ms[1][1:]]
    for one in running[2:]:
        one.entry = replace(one.entry, baseline="file")
    plan = Plan(batch_sizes=(1, 8), rounds=16, block_ms=1, threads=1, timeout_s=60, restarts=False)
    _stop_early(running, 8, ["fp32"], 4, plan)
    assert {one.name: [*one.stopped] for one in running} == {"fp32": [], "file": [8], "session": [8], "better": []}
    for one in running:
        one.stopped.clear()
    _stop_early([running[0], *running[1:3]], 1, ["fp32"], 4, plan)
    assert {one.name for one in running if one.stopped} == {"session"}
    assert running[2].stopped == {1: EarlyStop(4, "file", "no faster"), 8: EarlyStop(3, "file", "no faster")}
    [row, _] = rows(running[2], running[0], resolution=0.005)
    assert (row.verdict, row.stopped_as, row.stopped_for, row.speedup) == ("faster", "no faster", "file", 2)
    assert row.more_rounds is None


def turning(pairs: int) -> onnx.ModelProto:
    """Return a model that turns its input over and back again, which a session with optimization leaves out."""
    names = ["x", *(f"t{i}" for i in range(2 * pairs))]
    turns = "\n".join(f"{b} = Transpose<perm = [0, 2, 1]>({a})" for a, b in pairwise(names))
    return onnx_text.model(f"""
        turning (float[batch,{SIZE},{SIZE}] x) => (float[batch,{SIZE},{SIZE}] y)
        {{
            {turns}
            y = Relu({names[-1]})
        }}
    """)


@pytest.fixture
def race(workspace: Callable[..., Workspace]) -> Callable[..., BenchmarkFacts]:
    def run(pairs: dict[str, int], **config: object) -> BenchmarkFacts:
        out = workspace()
        x = np.random.default_rng(0).standard_normal((2, SIZE, SIZE)).astype(np.float32)
        given = stored_for_race(out, {name: turning(count) for name, count in pairs.items()}, {"x": x})
        settings = {"block_ms": 4, "threads": 1, "timeout_s": 60, "batch_sizes": (1,), "profile": False}
        settings |= {"restart_processes": False} | config
        return benchmark(BenchmarkConfig.model_validate(settings), out, **given).facts

    return run


def test_winner_bears_its_session_when_that_is_the_fastest(race) -> None:
    facts = race({"fp32": 40, "candidate": 8}, **UNOPTIMIZED)
    for result in facts.results:
        assert result.target == "ort-cpu"
        assert [row.target for row in result.rows] == ["ort-cpu", "ort-cpu-off"]
        assert result.rows[0].speedup > result.rows[1].speedup
    chosen = choose(SelectConfig(), facts)[0]
    assert chosen.session == facts.session(chosen.winner)
    assert chosen.session.options["graph_optimization_level"] == "ORT_ENABLE_ALL"
    assert chosen.reason.endswith("at batch 1, in the session ort-cpu")


def test_reference_wins_when_it_is_fastest_in_another_session(race) -> None:
    facts = race({"fp32": 40}, **UNOPTIMIZED)
    chosen = choose(SelectConfig(), facts)[0]
    assert chosen.winner == "fp32"
    assert chosen.session.name == "ort-cpu"
    assert "the speed of fp32 on ort-cpu-off at batch 1, in the session ort-cpu" in chosen.reason


CLOCK = """
import os
import sys
import onnx
from gauntlet.runtime.engines.ort import OrtEngine
from gauntlet.runtime.worker import serve

init, measure = OrtEngine.__init__, OrtEngine.measure

def load(self, model, threads, options):
    init(self, model, threads, options)
    nodes = len(onnx.load(model).graph.node)
    self.took_ms = nodes / 10 if options["level"] == "off" else 1 + nodes / 100
    self.took_ms *= float(os.environ.get("SCALE", 1)) / (2 if options.get("threads") == 1 else 1)

def timed(self, feed, at_least_ms=0, calls=None, clock="wall"):
    return [self.took_ms] * (calls or 3), measure(self, feed)[1]

OrtEngine.__init__, OrtEngine.measure = load, timed
serve(sys.stdin, sys.stdout)
"""
"""A worker whose clock goes by the number of nodes, so that no noise decides."""


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Let workers have that clock, which no other work on the machine disturbs; the function scales its times."""
    monkeypatch.setattr("gauntlet.race.machine_load.MAX_SHARED", math.inf)
    monkeypatch.setattr("gauntlet.runtime.worker.WORKER_COMMAND", (sys.executable, "-c", CLOCK))
    monkeypatch.setattr(OrtTarget, "may_fork", False)
    return partial(monkeypatch.setenv, "SCALE")


@pytest.mark.slow
@pytest.mark.usefixtures("clock")
def test_racing_sessions_has_the_winner_of_the_whole_race_for_half_the_rounds(race) -> None:
    settings = {"targets": [{"kind": "ort-cpu", "level": "off"}], "rounds": 12}
    settings |= {"session_variants": [{"level": "off", "arena": False}, {}]}
    models = {"fp32": 60, "a": 40, "b": 20}
    whole, early = race(models, **settings, early_stopping=False), race(models, **settings, early_stopping=True)
    for facts in (whole, early):
        chosen = choose(SelectConfig(), facts)[0]
        assert (chosen.winner, chosen.target) == ("b", "ort-cpu")

    def rounds(facts: BenchmarkFacts) -> dict[tuple[str, str], int]:
        rows = [(result.candidate, row) for result in facts.results for row in result.rows]
        return {(name, row.target): row.stopped_after_round or facts.rounds for name, row in rows}

    assert set(rounds(whole).values()) == {12}
    to_the_end = {pair for pair, count in rounds(early).items() if count == 12}
    assert to_the_end == {("fp32", "ort-cpu-off"), ("b", "ort-cpu")}
    assert sum(rounds(early).values()) <= sum(rounds(whole).values()) / 2


@pytest.mark.parametrize(("scale", "raced"), [("0.3", {"b"}), ("3", set())])
def test_one_thread_wins_where_a_call_takes_under_a_millisecond_and_is_not_tried_elsewhere(
    race, clock: Callable[[str], None], scale: str, raced: set[str]
) -> None:
    clock(scale)
    facts = race({"fp32": 60, "b": 2}, threads=2, rounds=7, early_stopping=False)  # default sessions: 2.22, 1.05 ms
    assert {r.candidate for r in facts.results if "ort-cpu-1t" in {row.target for row in r.rows}} == raced
    chosen = choose(SelectConfig(), facts)[0]
    assert (chosen.winner, chosen.target) == ("b", "ort-cpu-1t" if raced else "ort-cpu")
    assert chosen.session.options["intra_op_num_threads"] == (1 if raced else 2)
    assert [session.name for session in facts.session_variants] == ["ort-cpu", "ort-cpu-1t"][: 1 + len(raced)]


def test_witness_is_asked_about_one_thread_where_the_default_session_is_not_faster(
    race, clock: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock("0.3")
    monkeypatch.setattr("gauntlet.race.machine_load.MachineLoad.is_stolen", True)
    facts = race({"fp32": 60, "larger": 100}, threads=2, rounds=7, early_stopping=False)
    by_target = {row.target: row for row in facts.result("larger").rows}
    assert by_target["ort-cpu"].verdict == "slower"
    assert by_target["ort-cpu-1t"].witness_speedup is not None


def test_disturbed_race_proves_no_session_better_than_the_default_one(
    race, clock: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock("0.3")
    monkeypatch.setattr("gauntlet.race.machine_load.MachineLoad.is_stolen", True)
    facts = race({"fp32": 60, "b": 2}, threads=2, rounds=7, early_stopping=False)
    chosen = choose(SelectConfig(), facts)[0]
    assert (chosen.winner, chosen.target) == ("b", "ort-cpu")
    assert {row.target for row in facts.result("b").rows} == {"ort-cpu", "ort-cpu-1t"}
    assert facts.first_results()[0].startswith("b     ~")


def test_winner_in_one_thread_is_confirmed_in_one_thread() -> None:
    first = BenchmarkConfig(threads=2)
    again = first.alone("ort-cpu-1t", 16)
    assert [session.name for session in again.all_sessions] == ["ort-cpu", "ort-cpu-1t"]
    assert again.plan((1,)).variants_below_ms is None  # it has won, so nothing is left to try
    assert [session.name for session in first.alone("ort-cpu", 16).all_sessions] == ["ort-cpu"]
