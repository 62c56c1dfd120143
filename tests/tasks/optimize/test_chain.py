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
from gauntlet.runtime.session import open_session
from tasks.optimize import OptimizeFacts, optimize
from tasks.optimize.chain import Chain
from tasks.optimize.graph_pass import OrtGraph, PythonPass
from tasks.optimize.verified_pass import PassFacts, _outer, speed_ratio

pytestmark = pytest.mark.slow
Own = Callable[[str], PythonPass]


def work(subject, *passes, timeout_s: float = 60) -> Report[OptimizeFacts]:
    chain = Chain(passes=passes, timeout_s=timeout_s)
    return optimize(chain, subject.out, model=subject.model, golden=subject.golden)


def by_name(report: Report[OptimizeFacts]) -> dict[str, PassFacts]:
    return {facts.name: facts for facts in report.facts.passes}


def check(report: Report[OptimizeFacts], name: str) -> Check:
    return next(c for c in report.checks if c.name == name)


def test_wrong_pass_in_a_chain_is_named_and_the_others_are_kept(subject, own: Own) -> None:
    report = work(subject, own("nothing"), own("no_identities"), own("wrong_bias"), OrtGraph(level="basic"))
    assert [facts.outcome for facts in report.facts.passes] == ["unchanged", "accepted", "rejected", "accepted"]
    wrong = by_name(report)["wrong_bias"]
    assert wrong.broke == "wrong"
    assert "'y' changes by" in wrong.reason
    broken = check(report, "optimize.broken_passes")
    assert (broken.value, broken.passed, broken.severity) == (1, False, "warning")
    assert "wrong_bias: 'y' changes by" in broken.detail
    assert report.failures == ()


def test_pass_is_dropped_when_it_fails_or_makes_no_valid_model(subject, own: Own) -> None:
    names = ("unknown_operator", "no_relu", "renamed_input", "wide_output", "number")
    facts = by_name(work(subject, *(own(name) for name in names)))
    assert [facts[name].broke for name in names] == ["invalid", "fails", "invalid", "invalid", "fails"]
    assert {facts[name].outcome for name in names} == {"rejected"}
    assert "ValueError: relu3 is more than it can take" in facts["no_relu"].reason
    assert "it changes the inputs from ['x'] to ['other']" in facts["renamed_input"].reason
    assert "it changes the outputs from ['float'] to ['double']" in facts["wide_output"].reason
    assert "own_passes:number returns int" in facts["number"].reason


@pytest.mark.parametrize(("name", "timeout_s", "reason"), [("crash", 60, "signal 11"), ("hang", 8, "timed out after")])
def test_chain_goes_on_behind_a_pass_that_crashes_or_hangs(
    subject, own: Own, name: str, timeout_s: float, reason: str
) -> None:
    facts = by_name(work(subject, own(name), own("no_identities"), timeout_s=timeout_s))
    assert [facts[each].outcome for each in (name, "no_identities")] == ["rejected", "accepted"]
    assert reason in facts[name].reason


def test_candidate_is_rejected_when_a_lone_pass_is_wrong(subject, own: Own) -> None:
    report = optimize(own("wrong_bias"), subject.out, model=subject.model, golden=subject.golden)
    (failure,) = report.failures
    assert failure.name == "optimize.accepted_passes"
    assert failure.detail.startswith("wrong_bias: 'y' changes by")
    assert failure.remedy == ""


def test_pass_is_dropped_when_it_slows_the_model_down(subject, own: Own) -> None:
    report = work(subject, own("needless_work"))
    (facts,) = report.facts.passes
    assert (facts.outcome, facts.broke) == ("rejected", "")
    assert facts.speed_high < 1
    assert facts.reason.startswith("slower: ")
    assert check(report, "optimize.broken_passes").passed  # it is right, and not worth it


def test_chain_writes_nothing_that_only_this_processor_can_load(subject) -> None:
    (facts,) = work(subject, OrtGraph(level="all")).facts.passes
    loaded = subject.out.folder / "loaded.onnx"
    open_session(subject.out.path(subject.model), save_to=loaded)
    if "com.microsoft.nchwc" not in [node.domain for node in onnx.load(loaded).graph.node]:
        pytest.skip("ONNX Runtime has no layout of its own for this processor")
    assert facts.outcome == "rejected"
    assert "a layout specific to this processor" in facts.reason


def test_chain_goes_on_where_it_was_when_it_was_killed(subject, own: Own) -> None:
    chain = Chain(passes=(own("nothing"), own("no_identities")))
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
        optimize(Chain(passes=(OrtGraph(),)), subject.out, model=subject.model, golden=golden)


def test_pass_whose_turn_comes_too_late_is_not_tried_and_named(subject, own: Own) -> None:
    chain = Chain(passes=(own("nothing"), own("no_identities"), OrtGraph()))
    report = optimize(chain, subject.out, model=subject.model, golden=subject.golden, budget_s=0)
    others = report.facts.passes[1:]
    assert [(one.name, one.outcome, one.reason) for one in others] == [
        (name, "not tried", "the time for graph passes, 0 s, was used up") for name in ("no_identities", "ort-extended")
    ]
    untried = check(report, "optimize.untried_passes")
    assert (untried.value, untried.severity) == (2, "warning")
    assert "before no_identities, ort-extended" in untried.detail
    assert not report.failures  # no pass was found wrong
    late = "the time for graph passes, 0 s, was used up"
    assert report.facts.nothing_to_gain == f"nothing to gain here: no pass that was tried changes the graph; {late}"
    assert report.timed  # so that it is not reused where there is more time


def test_passes_are_all_tried_where_there_is_time(subject, own: Own) -> None:
    chain = Chain(passes=(own("nothing"), own("no_identities")))
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
