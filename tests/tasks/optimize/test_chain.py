"""A chain keeps what is proven, drops what is not, and says which pass broke which node."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from gauntlet.core.artifact import Artifact
from gauntlet.core.errors import StageError
from gauntlet.core.report import Check, Report
from gauntlet.core.signature import Signature
from gauntlet.onnx_model.model_file import copy_model
from gauntlet.runtime.session import open_session
from gauntlet.runtime.subprocess_runner import run_in_subprocess
from tasks.numerics import NumericsConfig, numerics
from tasks.optimize import OptimizeFacts, optimize
from tasks.optimize.chain import Chain
from tasks.optimize.graph_pass import OrtGraph, PythonPass, halves
from tasks.optimize.latency_check import _outer, speed_ratio
from tasks.optimize.onnxscript import OnnxScript, OnnxScriptRewriter
from tasks.optimize.simplifiers import OnnxOptimizer, OnnxSim, OnnxSlim
from tasks.optimize.verified_pass import ChainState, PassFacts, try_pending_passes

Own = Callable[[str], PythonPass]


def work(subject, *passes, timeout_s: float = 60) -> Report[OptimizeFacts]:
    chain = Chain(passes=passes, timeout_s=timeout_s)
    return optimize(chain, subject.out, model=subject.model, golden=subject.golden)


def by_name(report: Report[OptimizeFacts]) -> dict[str, PassFacts]:
    return {facts.name: facts for facts in report.facts.passes}


def check(report: Report[OptimizeFacts], name: str) -> Check:
    return next(c for c in report.checks if c.name == name)


def test_wrong_pass_in_a_chain_of_ten_is_named(subject, own: Own) -> None:
    passes = (
        OnnxSim(),
        own("nothing"),
        OnnxSlim(),
        OnnxScriptRewriter(),
        OrtGraph(level="basic"),
        own("wrong_bias"),
        OnnxScript(),
        OnnxOptimizer(),
        OnnxOptimizer(passes=("eliminate_identity",)),
        OrtGraph(level="extended"),
    )
    report = work(subject, *passes)
    facts = by_name(report)
    assert len(report.facts.passes) == 10
    assert [f.name for f in report.facts.passes if f.broke] == ["wrong_bias"]
    wrong = facts["wrong_bias"]
    assert (wrong.outcome, wrong.broke) == ("rejected", "wrong")
    assert wrong.max_abs_error > 0.01
    assert "'y' changes by" in wrong.reason
    broken = check(report, "optimize.broken_passes")
    assert (broken.value, broken.passed, broken.severity) == (1, False, "warning")
    assert "wrong_bias: 'y' changes by" in broken.detail
    # What the others made is kept, and is right.
    assert facts["onnxsim"].outcome == "accepted"
    assert report.facts.nodes_after < report.facts.nodes_before
    assert report.failures == ()
    numerics(
        NumericsConfig(samples=8), subject.out, model=report.artifacts["model"], golden=subject.golden
    ).raise_if_blocked()
    assert Signature.read(onnx.load(subject.out.path(report.artifacts["model"]))).inputs[0].name == "x"


@pytest.mark.slow
def test_pass_is_dropped_when_it_fails_or_makes_no_valid_model(subject, own: Own) -> None:
    names = ("unknown_operator", "no_relu", "renamed_input", "number")
    facts = by_name(work(subject, *(own(name) for name in names)))
    assert [facts[name].broke for name in names] == ["invalid", "fails", "invalid", "fails"]
    assert {facts[name].outcome for name in names} == {"rejected"}
    assert "ValueError: relu3 is more than it can take" in facts["no_relu"].reason
    assert "it changes the inputs from ['x'] to ['other']" in facts["renamed_input"].reason
    assert "own_passes:number returns int" in facts["number"].reason


@pytest.mark.slow
def test_chain_goes_on_behind_a_pass_that_crashes(subject, own: Own) -> None:
    facts = by_name(work(subject, own("crash"), OnnxSlim()))
    assert [facts[name].outcome for name in ("crash", "onnxslim")] == ["rejected", "accepted"]
    assert "signal 11" in facts["crash"].reason


def test_candidate_is_rejected_when_a_lone_pass_is_wrong(subject, own: Own) -> None:
    report = optimize(own("wrong_bias"), subject.out, model=subject.model, golden=subject.golden)
    (failure,) = report.failures
    assert failure.name == "optimize.accepted_passes"
    assert failure.detail.startswith("wrong_bias: 'y' changes by")
    assert failure.remedy == ""


@pytest.mark.slow
def test_chain_goes_on_behind_a_pass_that_hangs(subject, own: Own) -> None:
    facts = by_name(work(subject, own("hang"), OnnxSlim(), timeout_s=8))
    assert [facts[name].outcome for name in ("hang", "onnxslim")] == ["rejected", "accepted"]
    assert facts["hang"].reason.startswith("timed out after 8 s")


@pytest.mark.slow
def test_group_is_bisected_to_the_single_pass_when_it_breaks_the_model(subject) -> None:
    group = OnnxOptimizer(passes=("eliminate_identity", "split_predict", "eliminate_deadend", "fuse_bn_into_conv"))
    facts = by_name(work(subject, group))
    assert facts["onnxoptimizer-eliminate_identity-to-fuse_bn_into_conv"].outcome == "split"
    assert facts["onnxoptimizer-split_predict"].outcome == "rejected"
    assert facts["onnxoptimizer-eliminate_identity"].outcome == "accepted"
    assert facts["onnxoptimizer-eliminate_deadend-to-fuse_bn_into_conv"].outcome == "accepted"


def test_process_ends_behind_a_split_group_so_that_the_halves_get_time_of_their_own(subject, tmp_path: Path) -> None:
    group = OnnxOptimizer(passes=("eliminate_identity", "split_predict", "eliminate_deadend", "fuse_bn_into_conv"))
    copy_model(subject.out.path(subject.model), tmp_path / "original.onnx")
    ChainState(pending=(group, OnnxSlim()), model="original.onnx").write(tmp_path)
    arguments = (tmp_path, subject.out.path(subject.golden), NumericsConfig(samples=8), 0.02, 60)
    run_in_subprocess(try_pending_passes, *arguments, timeout_s=180, memory_bytes=4_000_000_000)
    state = ChainState.read(tmp_path)
    assert [step.outcome for step in state.steps] == ["split"]
    assert state.pending == (*halves(group), OnnxSlim())


def test_pass_is_dropped_when_it_slows_the_model_down(subject, own: Own) -> None:
    report = work(subject, own("needless_work"))
    (facts,) = report.facts.passes
    assert (facts.outcome, facts.broke) == ("rejected", "")
    assert facts.speed_high < 1
    assert facts.reason.startswith("slower: ")
    assert check(report, "optimize.broken_passes").passed  # it is right, and not worth it


def test_chain_writes_nothing_that_only_this_processor_can_load(subject) -> None:
    (facts,) = work(subject, OrtGraph(level="all")).facts.passes
    loaded = [n.domain for n in session_graph(subject).node]
    if "com.microsoft.nchwc" not in loaded:
        pytest.skip("ONNX Runtime has no layout of its own for this processor")
    assert facts.outcome == "rejected"
    assert "a layout specific to this processor" in facts.reason


def session_graph(subject) -> onnx.GraphProto:
    path = subject.out.folder / "loaded.onnx"
    open_session(subject.out.path(subject.model), save_to=path)
    return onnx.load(path).graph


@pytest.mark.slow
def test_chain_goes_on_where_it_was_when_it_was_killed(subject, own: Own) -> None:
    chain = Chain(passes=(own("nothing"), OnnxSlim()))
    optimize(chain, subject.out, model=subject.model, golden=subject.golden)
    state = subject.out.folder / "chain" / "state.json"
    before = state.read_bytes()
    (subject.out.folder / "chain" / "original.onnx").unlink()  # nothing is tried again, so nothing needs it
    report = optimize(chain, subject.out, model=subject.model, golden=subject.golden)
    assert state.read_bytes() == before
    assert [f.outcome for f in report.facts.passes] == ["unchanged", "accepted"]


def test_chain_says_so_when_the_golden_answers_do_not_fit(subject) -> None:
    path = subject.out.folder / "golden.npz"
    np.savez(path, **{"inputs/real/other": np.zeros((2, 2)), "outputs/real/y": np.zeros((2, 10))})
    golden: Artifact = subject.out.store_file(path)
    with pytest.raises(StageError, match="no samples for the input 'x'"):
        optimize(Chain(passes=(OnnxSlim(),)), subject.out, model=subject.model, golden=golden)


def test_pass_whose_turn_comes_too_late_is_not_tried_and_named(subject, own: Own) -> None:
    chain = Chain(passes=(own("nothing"), OnnxSim(), OnnxSlim()))
    report = optimize(chain, subject.out, model=subject.model, golden=subject.golden, budget_s=0)
    others = report.facts.passes[1:]
    assert [(one.name, one.reason) for one in others] == [
        (name, "not tried: the time for graph passes, 0 s, was used up") for name in ("onnxsim", "onnxslim")
    ]
    untried = check(report, "optimize.untried_passes")
    assert (untried.value, untried.severity) == (2, "warning")
    assert "before onnxsim, onnxslim" in untried.detail
    assert report.timed  # so that it is not reused where there is more time


def test_passes_are_all_tried_where_there_is_time(subject, own: Own) -> None:
    chain = Chain(passes=(own("nothing"), OnnxSim()))
    report = optimize(chain, subject.out, model=subject.model, golden=subject.golden, budget_s=1e6)
    assert [one.outcome for one in report.facts.passes] == ["unchanged", "accepted"]
    assert not [one for one in report.checks if one.name == "optimize.untried_passes"]


@given(st.integers(6, 400))
def test_interval_leaves_out_as_many_rounds_as_the_sign_test_allows(rounds: int) -> None:
    outside = _outer(rounds)
    assert binom.cdf(outside, rounds, 0.5) <= 0.025 < binom.cdf(outside + 1, rounds, 0.5)


def test_interval_holds_its_median_and_one_model_has_its_own_speed(subject, tmp_path: Path) -> None:
    model = subject.out.path(subject.model)
    inputs = {"x": np.zeros((4, 3, 16, 16), np.float32)}
    onnx.save(onnx.load(model), tmp_path / "same.onnx")
    speed, low, high = speed_ratio(model, tmp_path / "same.onnx", inputs)
    assert 0 < low <= speed <= high
