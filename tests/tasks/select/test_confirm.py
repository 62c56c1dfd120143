"""The winner is proven once, in a race of its own."""

from typing import Any

import numpy as np
import onnx
import pytest
from matmul_chains import chain
from synthetic_races import Interval, Outcome, row, synthetic_race

from gauntlet.core.errors import GateFailed
from gauntlet.core.run_report import CandidateEntry
from gauntlet.race.budget import Budget
from gauntlet.race.machine_load import MachineLoad
from tasks.benchmark import BenchmarkConfig
from tasks.benchmark.facts import BenchmarkFacts
from tasks.select import Decision, SelectConfig, still_holds
from tasks.select.confirm import confirm_in_order, judge, undisturbed
from tasks.select.decision import Choice, Confirmation

from .conftest import Confirm

pytestmark = pytest.mark.slow


def test_faster_candidate_is_confirmed_with_a_new_measurement(confirmed: Confirm) -> None:
    report = confirmed({"fp32": chain(24), "cheap": chain(1)}, "cheap")
    [raced] = report.facts.confirmations
    assert (report.facts.winner, raced.confirmed, report.failures) == ("cheap", True, ())
    assert [row.batch for row in raced.rows] == [1, 2]
    assert report.facts.reason.endswith("the speed of fp32 at batch 1; the most exact of 2 equally fast candidates")
    failed = {check.name for check in report.checks if not check.passed}
    assert failed <= {"select.max_aa_deviation", "select.disturbed"}


def test_reason_names_the_speed_up_over_the_normalized_file_where_that_is_faster_too(confirmed: Confirm) -> None:
    models = {"fp32": chain(24), "normalized": chain(8), "cheap": chain(1)}
    facts = confirmed(models, "cheap", normalized="normalized").facts
    [raced] = facts.confirmations
    assert raced.confirmed
    assert 1 < raced.over_normalized.speedup < raced.rows[0].speedup
    assert facts.reason.endswith(f"; {raced.over_normalized}")
    assert str(raced.over_normalized).endswith("] the speed of normalized")
    assert {row.target for row in raced.rows} == {"ort-cpu"}


def test_reason_leaves_out_a_normalized_file_that_is_no_faster(confirmed: Confirm) -> None:
    models = {"fp32": chain(12), "normalized": chain(12), "cheap": chain(1)}
    [raced] = confirmed(models, "cheap", normalized="normalized").facts.confirmations
    row = raced.race.result("normalized").rows[0]
    assert (raced.over_normalized is None) == (row.verdict == "not resolved")


def test_speed_over_the_normalized_file_covers_what_witnesses_say() -> None:
    rows = {name: row(1, interval) for name, interval in (("int8", (4.0, 8.0, 9.0)), ("normalized", (1.8, 2.0, 2.2)))}
    for witness, expected in ((None, "4.00x ["), ((3.0, 3.2, 3.3), "1.60x [1.36, 5.00]")):
        own = rows["int8"] if witness is None else rows["int8"].with_witness(row(1, witness))
        race = synthetic_race({"int8": (own,), "normalized": (rows["normalized"],)})
        choice = Choice(candidate="int8", target="t", session=None, note="")
        assert str(judge(race, SelectConfig(), choice, 1).over_normalized).startswith(expected)


NEVER = 1000.0
"""A speed-up that no chain here has: two equal models look 5 % apart by luck now and then."""


def test_candidate_that_is_not_fast_enough_loses_to_the_reference(confirmed: Confirm) -> None:
    report = confirmed({"fp32": chain(4), "lucky": chain(4)}, "lucky", min_speedup=NEVER)
    assert (report.facts.winner, report.facts.target) == ("fp32", "ort-cpu")
    assert report.facts.reason.startswith("lucky was fastest, but not proven so again: ")
    [check] = [check for check in report.checks if check.name == "select.min_speedup"]
    assert not check.passed
    report.raise_if_blocked()  # a warning: FP32 passed every gate


def test_session_variant_of_the_reference_is_raced_against_the_default_one(confirmed: Confirm) -> None:
    report = confirmed({"fp32": chain(4)}, "fp32", "ort-cpu-off", min_speedup=NEVER)
    rows = report.facts.confirmations[0].rows
    assert {row.target for row in rows} == {"ort-cpu-off"}
    assert (report.facts.winner, report.facts.target) == ("fp32", "ort-cpu")
    assert report.facts.reason.startswith("fp32 on ort-cpu-off was fastest, but not proven so again: ")
    benchmark = (*rows, *(row.replace(target="ort-cpu") for row in rows))
    entry = CandidateEntry(
        name="fp32", parent=None, status="accepted", reason="", benchmark=benchmark, target="ort-cpu-off"
    )
    changed = report.facts.candidate_changes({"fp32": entry})["fp32"]
    assert (changed["target"], changed["status"]) == ("ort-cpu", "accepted")  # what ships heads the report
    assert [row.target for row in changed["benchmark"]] == [*["ort-cpu"] * len(rows), *["ort-cpu-off"] * len(rows)]


def here(race: BenchmarkFacts) -> BenchmarkFacts:
    """Return a race whose candidates run in the first session."""
    return race.replace(results=tuple(result.replace(target="ort-cpu") for result in race.results))


def test_reference_in_its_default_session_needs_no_second_race(confirmed: Confirm) -> None:
    first = here(synthetic_race({"slow": (0.5, 0.6, 0.7)}))
    report = confirmed({"fp32": chain(1), "slow": chain(4)}, "fp32", after=first)
    assert (report.facts.winner, report.facts.confirmations) == ("fp32", ())
    assert [check.name for check in report.checks] == ["select.min_speedup"]


def test_choice_is_confirmed_and_still_fails_where_no_candidate_was_within_the_budget(confirmed: Confirm) -> None:
    models, first = {"fp32": chain(24), "cheap": chain(1)}, here(synthetic_race({"cheap": (2.0, 2.5, 3.0)}))
    report = confirmed(models, "cheap", after=first, budget=Budget(max_p50_ms={1: 1e-6}))
    assert [each.confirmed for each in report.facts.confirmations] == [True]
    assert [check.name for check in report.checks if check.name != "select.disturbed"] == [
        "select.min_speedup", "select.max_aa_deviation", "budget.max_p50_ms",
    ]  # fmt: skip
    with pytest.raises(GateFailed, match=r"^budget\.max_p50_ms: .*; no candidate is within the budget"):
        report.raise_if_blocked()


def test_winner_must_be_within_the_budget_as_confirmed(confirmed: Confirm) -> None:
    budget = Budget(max_p50_ms={1: 1e-6}, max_peak_memory_mb=1e6, min_images_per_second={2: 1e-3})
    report = confirmed({"fp32": chain(24), "cheap": chain(1)}, "cheap", budget=budget)
    assert report.facts.winner == "cheap"
    with pytest.raises(GateFailed, match=r"^budget\.max_p50_ms: .* cheap on ort-cpu at batch 1"):
        report.raise_if_blocked()
    assert [c.passed for c in report.checks if c.name.startswith("budget.")] == [False, True, True]


def test_candidate_over_the_budget_loses_to_a_reference_within_it(confirmed: Confirm) -> None:
    heavy = chain(1)
    heavy.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(4_000_000, np.float32), "unused"))
    report = confirmed({"fp32": chain(24), "heavy": heavy}, "heavy", budget=Budget(max_size_mb=10))
    assert report.facts.winner == "fp32"
    assert report.facts.confirmations[0].objection == "over the budget (max_size_mb 10 MB, measured 16.26)"
    report.raise_if_blocked()


def test_candidate_within_the_budget_needs_no_speed_up_over_a_reference_that_is_not(confirmed: Confirm) -> None:
    heavy = chain(4)
    heavy.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(4_000_000, np.float32), "unused"))
    report = confirmed({"fp32": heavy, "small": chain(4)}, "small", budget=Budget(max_size_mb=10))
    assert (report.facts.winner, report.facts.confirmations[0].confirmed) == ("small", True)
    report.raise_if_blocked()


def test_noisy_machine_is_a_warning(confirmed: Confirm) -> None:
    report = confirmed({"fp32": chain(24), "cheap": chain(1)}, "cheap", max_aa_deviation=1e-12)
    [check] = [check for check in report.checks if check.name == "select.max_aa_deviation"]
    assert (check.passed, check.severity) == (False, "warning")


def test_race_of_the_headline_says_that_other_work_disturbed_it(
    confirmed: Confirm, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = MachineLoad(load_average=(9, 9), steal_share=0.5, other_load_cores=0, exposed=())
    monkeypatch.setattr("gauntlet.race.rounds.LoadMonitor.notes", lambda *_: load)
    report = confirmed({"fp32": chain(24), "cheap": chain(1)}, "cheap")
    [check] = [check for check in report.checks if check.name == "select.disturbed"]
    assert (check.passed, check.severity) == (False, "warning")
    assert "which disturbed the race" in check.detail


class Races:
    """Second races whose outcome is known; each takes so many seconds."""

    def __init__(self, outcomes: dict[str, Outcome], seconds: float = 0, **select: Any) -> None:
        self.outcomes, self.seconds, self.now = outcomes, seconds, 0.0
        self.select = SelectConfig(**select)
        self.confidences: list[float] = []

    def race_again(self, choice: Choice, confidence: float) -> Confirmation:
        self.now += self.seconds
        self.confidences.append(confidence)
        race = synthetic_race({choice.candidate: self.outcomes[choice.candidate]})
        return judge(race, self.select, choice, batch=1).replace(confidence=confidence)

    def confirm(self) -> Decision:
        first, *others = self.outcomes
        runners_up = tuple(Choice(candidate=name, target="t", session=None, note="") for name in others)
        rest = {"target": "t", "reason": "", "required_speedup": 1.05, "decisions": ()}
        selected = Decision(winner=first, runners_up=runners_up, **rest)
        return confirm_in_order(self.select, selected, self.race_again, clock=lambda: self.now)


UNPROVEN: Interval = (1.01, 1.1, 1.2)
PROVEN: Interval = (1.16, 1.2, 1.25)


def test_rows_of_the_first_race_are_kept_beside_those_of_the_confirmation() -> None:
    rows = synthetic_race({"static": FIRST}).result("static").rows
    known = {"name": "static", "parent": "fp32", "status": "accepted", "reason": "", "target": "t"}
    entry = CandidateEntry.model_validate(known | {"benchmark": rows})
    changed = entry.replace(**Races({"static": PROVEN}).confirm().candidate_changes({"static": entry})["static"])
    assert [row.speedup for row in changed.benchmark] == [1.2, 1.2]
    assert changed.side_by_side == rows


CHOICE = Choice(candidate="static", target="t", session=None, note="")
FIRST: Interval = (3.95, 4.25, 5.55)


def again(*races: tuple[Interval, float], budget_s: float = 300) -> tuple[Interval, bool]:
    """Race a candidate that was `FIRST` again, 100 s a race; return the interval that counts, and if disturbed."""
    left, now = list(races), [0.0]

    def race_once() -> BenchmarkFacts:
        now[0] += 100
        interval, aa_deviation = left.pop(0)
        return synthetic_race({"static": interval}, aa_deviation)

    before = synthetic_race({"static": FIRST}).result("static").rows
    race, disturbed = undisturbed(race_once, CHOICE, before, 0.05, budget_s, lambda: now[0])
    row = judge(race, SelectConfig(), CHOICE, 1, covered=before if disturbed else ()).rows[0]
    return (row.speedup_low, row.speedup, row.speedup_high), disturbed


@pytest.mark.parametrize("race", [((5.65, 10.65, 14.49), 0.161), ((9.0, 9.5, 10.0), 0.01)])
def test_race_whose_control_is_off_or_that_is_far_above_the_first_is_repeated_and_the_repetition_counts(race) -> None:
    assert again(race, ((3.9, 4.1, 4.3), 0.02)) == ((3.9, 4.1, 4.3), False)


def test_twice_disturbed_race_shows_the_smaller_speed_up_and_covers_both_races() -> None:
    wild = ((5.65, 10.65, 14.49), 0.161)
    assert again(wild, wild) == ((3.95, 4.25, 14.49), True)


def test_disturbed_race_is_not_repeated_beyond_the_time_budget() -> None:
    assert again(((3.9, 4.1, 4.3), 0.161), budget_s=150) == ((3.9, 4.1, 5.55), True)


def test_race_below_the_first_counts_at_once() -> None:
    assert again(((2.0, 2.1, 2.2), 0.01)) == ((2.0, 2.1, 2.2), False)


def test_selection_is_repeated_in_another_run_where_its_race_was_disturbed() -> None:
    decision, plan = Races({"int8": PROVEN}).confirm(), BenchmarkConfig()
    [confirmation] = decision.confirmations
    race = confirmation.race
    stolen = race.replace(machine=race.machine.replace(steal_share=0.5))
    for raced, holds in ((race, True), (stolen, False), (race.replace(aa_deviation=0.9), False)):
        known = decision.replace(confirmations=(confirmation.replace(race=raced),))
        assert still_holds(SelectConfig(), None, known=known, benchmark=plan, golden=None) is holds
    assert still_holds(SelectConfig(), None, known=decision.replace(confirmations=()), benchmark=plan)


def test_next_candidate_is_confirmed_when_the_selected_one_is_not() -> None:
    final = Races({"onnxslim": UNPROVEN, "static": PROVEN, "dynamic": PROVEN}).confirm()
    assert final.winner == "static"
    assert [(each.candidate, each.confirmed) for each in final.confirmations] == [("onnxslim", False), ("static", True)]
    assert final.confirmations[0].objection == "not proven faster again"
    assert final.not_tried == ()  # one that is confirmed ends the search
    assert final.reason == (
        "1.20x [1.16, 1.25] the speed of fp32 at batch 1; raced again before it, onnxslim was not proven faster again: "
        "1.10x [1.01, 1.20] at batch 1"
    )


def test_candidate_that_cannot_be_measured_again_is_passed_over() -> None:
    final = Races({"broken": "the worker was killed by signal 11", "static": PROVEN}).confirm()
    assert final.winner == "static"
    assert final.confirmations[0].measured == "could not be measured: the worker was killed by signal 11"


def test_reference_wins_when_no_candidate_is_confirmed_and_the_report_names_all_of_them() -> None:
    final = Races(dict.fromkeys(["a", "b", "c", "d"], UNPROVEN)).confirm()
    assert final.winner == "fp32"
    assert [(each.candidate, each.confirmed) for each in final.confirmations] == [(name, False) for name in "abc"]
    assert final.not_tried == ("d",)
    assert final.reason.startswith("a was fastest, but not proven so again: 1.10x [1.01, 1.20] at batch 1; nor ")
    assert final.reason.endswith("because the confirmation had no more races or time left: d")


def test_races_that_may_follow_each_other_share_the_risk_of_a_single_one() -> None:
    alone, three = Races({"a": UNPROVEN}), Races(dict.fromkeys(["a", "b", "c", "d"], UNPROVEN))
    for races in (alone, three):
        races.confirm()
    assert alone.confidences == [0.95]
    assert len(three.confidences) == 3
    assert sum(1 - confidence for confidence in three.confidences) == pytest.approx(0.05)


def test_no_race_is_begun_that_would_end_after_the_time_budget() -> None:
    races = Races(dict.fromkeys(["a", "b", "c"], UNPROVEN), seconds=100, confirm_budget_s=250)
    assert races.confirm().not_tried == ("c",)
    assert Races({"a": UNPROVEN, "b": PROVEN}, seconds=100, confirm_budget_s=1).confirm().winner == "fp32"


def test_handover_in_a_real_race_ends_with_the_faster_of_two(confirmed: Confirm) -> None:
    models = {"fp32": chain(24), "lucky": chain(24), "cheap": chain(1)}
    report = confirmed(models, "lucky", runners_up=("cheap",), min_speedup=2)
    assert report.facts.winner == "cheap"
    assert [each.candidate for each in report.facts.confirmations] == ["lucky", "cheap"]
    rounds = report.facts.confirmations[1].race.result("cheap").round_medians_ms[1]
    assert len(rounds) == 11  # 8 at 97.5 % instead of 95 %
    assert [check.passed for check in report.checks if check.name == "select.min_speedup"] == [True]
