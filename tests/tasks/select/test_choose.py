"""The last gate, on races whose outcome is known."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from synthetic_races import Interval, Outcome, row, synthetic_race

from gauntlet.core.errors import GateFailed
from gauntlet.core.report import Report
from gauntlet.race.budget import NO_BUDGET, Budget
from gauntlet.race.session_options import SessionVariant
from tasks.select import Decision, Fidelity, SelectConfig
from tasks.select.choose import choose as choose_winner

Choose = Callable[..., Report[Decision]]
MISSING = "more rounds would probably decide it"


@pytest.fixture
def choose() -> Choose:
    def run(
        candidates: dict[str, Outcome],
        aa_deviation: float = 0.01,
        *,
        at_batch_8: Interval | None = None,
        fidelities: dict[str, Fidelity] | None = None,
        own_noise_db: dict[str, float] | None = None,
        sizes: dict[str, int] | None = None,
        budget: Budget = NO_BUDGET,
        **config: object,
    ) -> Report[Decision]:
        race = synthetic_race(candidates, aa_deviation, at_batch_8=at_batch_8, own_noise_db=own_noise_db, sizes=sizes)
        decision, checks = choose_winner(SelectConfig(**config), race, fidelities=fidelities, budget=budget)
        return Report(stage="select", facts=decision, checks=checks)

    return run


def test_select_ranks_the_others_that_may_win(choose: Choose) -> None:
    candidates: dict[str, Interval | str] = {
        "slim": (1.2, 1.3, 1.4),
        "slower": (0.5, 0.6, 0.7),
        "int8": (2.0, 2.5, 3.0),
        "exact": (2.0, 2.48, 3.0),
    }
    facts = choose(candidates, fidelities=noise(int8=30.0, exact=50.0)).facts
    assert [facts.winner, *(each.candidate for each in facts.runners_up)] == ["exact", "int8", "slim"]
    assert (facts.note, facts.runners_up[0].note) == ("; the most exact of 2 equally fast candidates", "")


def test_winner_names_its_session_unless_that_is_the_first() -> None:
    race, reasons = synthetic_race({"int8": (2.0, 2.5, 3.0)}), []
    for names in (["t", "t-1t"], ["t-2t", "t"]):
        sessions = tuple(SessionVariant(name=name, options={}) for name in names)
        reasons.append(choose_winner(SelectConfig(), race.replace(session_variants=sessions))[0].reason)
    assert reasons[0].endswith("the speed of fp32 at batch 1")
    assert reasons[1].endswith("the speed of fp32 at batch 1, in the session t")


def noise(**sqnr_db: float) -> dict[str, Fidelity]:
    return {name: Fidelity(network="fp32", sqnr_db=value) for name, value in sqnr_db.items()}


def test_select_takes_the_most_exact_when_several_are_as_fast(choose: Choose) -> None:
    candidates: dict[str, Interval] = {
        "int8": (3.5, 3.7, 3.9),
        "head": (3.5, 3.65, 3.8),
        "other": (3.5, 3.66, 3.8),
        "exact": (1.9, 2.0, 2.1),
        "unproven": (0.9, 3.7, 5.0),
    }
    fidelities = noise(int8=38.0, head=42.5, other=37.0, exact=140.0, unproven=141.0)
    found = choose(candidates, fidelities=fidelities).facts
    assert found.winner == "head"
    assert (
        found.reason == "3.65x [3.50, 3.80] the speed of fp32 at batch 1; the most exact of 3 equally fast candidates"
    )
    assert choose(candidates, fidelities=fidelities, tie_tolerance=0).facts.winner == "int8"
    noisy = choose(candidates, fidelities=fidelities, aa_deviation=0.5)
    assert noisy.facts.winner == "exact"  # where the reference is so far from itself, twice as fast is not more
    assert choose(candidates, fidelities=noise(int8=38.0, head=38.0, other=38.0)).facts.winner == "int8"


def test_most_exact_wins_of_those_that_the_rounds_do_not_prove_slower(choose: Choose) -> None:
    """Point estimates decide nothing: 2.65x, 2.55x and 2.43x are equal where the same rounds do not tell them apart."""
    rng, base = np.random.default_rng(0), 4 * np.ones(16)
    candidates: dict[str, Interval] = {"fast": (2.46, 2.65, 2.88), "exact": (2.29, 2.55, 3.03), "slow": (1.9, 2.0, 2.1)}
    rounds = {n: tuple(base / center * rng.lognormal(0, 0.1, 16)) for n, (_, center, _) in candidates.items()}
    fidelities = noise(fast=11.0, exact=18.2, slow=60.0)
    race = synthetic_race(candidates)
    results = (r.replace(round_quartiles_ms={1: rounds.get(r.candidate, (4.0,) * 16)}) for r in race.results)
    assert choose(candidates, fidelities=fidelities).facts.winner == "fast"  # 4 % behind in every round
    noisy = race.replace(results=tuple(results))
    assert choose_winner(SelectConfig(), noisy, fidelities=fidelities)[0].winner == "exact"


def test_first_wins_of_those_with_the_same_values_but_for_the_order_of_sums(choose: Choose) -> None:
    """A repair that leaves all nodes in float is the network that it began with, and no faster."""
    candidates: dict[str, Interval] = {"normalized": (2.1, 2.27, 2.4), "repaired": (2.1, 2.28, 2.4)}
    assert choose(candidates, fidelities=noise(normalized=90.0, repaired=91.0)).facts.winner == "normalized"
    assert choose(candidates, fidelities=noise(normalized=60.0, repaired=61.0)).facts.winner == "repaired"


def test_smallest_wins_of_those_with_the_same_values(choose: Choose) -> None:
    candidates: dict[str, Interval] = {"first": (2.0, 2.3, 2.6), "small": (2.0, 2.28, 2.6), "noted": (2.0, 2.28, 2.6)}
    fidelities, sizes = noise(first=91.0, small=90.0, noted=92.0), {"first": 2000, "small": 1005, "noted": 1000}
    assert choose(candidates, fidelities=fidelities, sizes=sizes).facts.winner == "small"
    assert choose(candidates, fidelities=fidelities, sizes=sizes | {"first": 1010}).facts.winner == "first"


def test_wall_clock_of_a_disturbed_race_proves_no_candidate_slower(choose: Choose) -> None:
    """Short calls fit between the interruptions of others, so they look faster than they are."""
    fast, exact = row(1, (3.8, 6.8, 7.0)), row(1, (2.9, 3.2, 3.6))
    fidelities = noise(fast=11.0, exact=18.0)
    assert choose({"fast": (fast,), "exact": (exact,)}, fidelities=fidelities).facts.winner == "fast"
    witnessed = fast.with_witness(row(1, (3.3, 3.5, 3.6)))
    facts = choose({"fast": (witnessed,), "exact": (exact,)}, fidelities=fidelities).facts
    assert facts.winner == "exact"
    assert facts.decision("fast").reason == "~3.50x [3.30, 7.00] at batch 1"
    apart = fast.with_witness(row(1, (3.75, 3.8, 3.9)))
    assert choose({"fast": (apart,), "exact": (exact,)}, fidelities=fidelities).facts.winner == "fast"


def test_select_counts_no_more_exactness_than_the_target_has(choose: Choose) -> None:
    candidates: dict[str, Interval] = {"int8": (3.5, 3.7, 3.9), "fine": (3.5, 3.7, 3.9)}
    fidelities = noise(int8=38.0, fine=120.0)
    assert choose(candidates, fidelities=fidelities, own_noise_db={"fine": 60.0}).facts.winner == "fine"
    assert choose(candidates, fidelities=fidelities, own_noise_db={"fine": 30.0}).facts.winner == "int8"


def test_select_compares_no_exactness_when_the_networks_differ(choose: Choose) -> None:
    candidates: dict[str, Interval] = {"pruned": (3.5, 3.7, 3.9), "int8": (3.5, 3.7, 3.8)}
    apart = noise(int8=42.0) | {"pruned": Fidelity(network="pruned", sqnr_db=38.0)}
    assert choose(candidates, fidelities=apart).facts.winner == "pruned"
    assert choose(candidates, fidelities=noise(int8=42.0)).facts.winner == "pruned"  # of it nothing is known
    assert choose(candidates, fidelities=noise(int8=42.0, pruned=38.0)).facts.winner == "int8"


@pytest.mark.parametrize(
    ("interval", "why"),
    [
        ((0.9, 1.2, 1.6), f"not proven faster: 1.20x [0.90, 1.60] at batch 1; about 34 {MISSING}"),
        ((0.5, 0.6, 0.7), "slower: 0.60x [0.50, 0.70] at batch 1"),
        ((1.01, 1.02, 1.04), "faster, but not by more than 1.03x: 1.02x [1.01, 1.04] at batch 1"),
        ((1.03, 1.2, 1.4), f"faster, but not by more than 1.03x: 1.20x [1.03, 1.40] at batch 1; about 1 {MISSING}"),
        ((-math.inf, 9.0, math.inf), "not proven faster: 9.00x [-inf, inf] at batch 1"),
        ((math.nan, math.nan, math.nan), "not proven faster: nanx [nan, nan] at batch 1"),
    ],
)
def test_select_keeps_the_reference_when_no_candidate_is_proven(choose: Choose, interval: Interval, why: str) -> None:
    report = choose({"int8": interval})
    assert report.facts.winner == "fp32"
    assert report.facts.reason == "no candidate is proven faster than fp32 by more than 1.03x"
    assert (report.facts.decision("int8").accepted, report.facts.decision("int8").reason) == (False, why)
    assert not report.checks[0].passed
    report.raise_if_blocked()  # a warning only: the FP32 model is a good answer


def test_select_raises_the_bar_when_the_machine_is_noisy(choose: Choose) -> None:
    candidates: dict[str, Interval | str] = {"int8": (1.15, 1.2, 1.25)}
    assert choose(candidates, aa_deviation=0.01).facts.winner == "int8"
    noisy = choose(candidates, aa_deviation=0.2)
    assert noisy.facts.winner == "fp32"
    assert noisy.facts.required_speedup == pytest.approx(1.2)
    assert noisy.checks[0].limit == noisy.facts.required_speedup
    assert "faster, but not by more than 1.2x" in noisy.facts.decision("int8").reason


def test_select_accepts_nobody_when_the_noise_is_not_a_number(choose: Choose) -> None:
    report = choose({"int8": (3.0, 4.0, 5.0)}, aa_deviation=math.nan)
    assert report.facts.winner == "fp32"
    assert not report.checks[0].passed


def test_select_says_who_was_faster_when_a_candidate_was_dropped(choose: Choose) -> None:
    dropped = row(1, (0.97, 1.01, 1.05)).replace(verdict="slower", stopped_after_round=3)
    dropped = dropped.replace(stopped_for="int8", stopped_as="slower")
    report = choose({"int8": (3.0, 3.1, 3.2), "slim": (dropped,)})
    assert report.facts.winner == "int8"
    assert report.facts.decision("slim").accepted is False
    reason = "dropped after round 3, slower than int8: 1.01x [0.97, 1.05] at batch 1"
    assert report.facts.decision("slim").reason == reason


def test_select_says_how_many_rounds_are_missing_for_its_own_margin(choose: Choose) -> None:
    report = choose({"slim": (1.0, 1.08, 1.18), "near": (0.98, 1.02, 1.07)})
    told = "not proven faster: 1.08x [1.00, 1.18] at batch 1; about 27 more rounds"
    assert report.facts.decision("slim").reason.startswith(told)
    assert "more rounds" not in report.facts.decision("near").reason  # no number would put it above the margin
    assert "more rounds" not in choose({"slim": (1.04, 1.1, 1.2)}, aa_deviation=0.2).facts.decision("slim").reason


def test_select_looks_at_its_own_batch_size_when_batch_sizes_disagree(choose: Choose) -> None:
    candidates: dict[str, Interval | str] = {"int8": (2.0, 2.5, 3.0)}
    assert choose(candidates, at_batch_8=(0.5, 0.6, 0.7), batch=1).facts.winner == "int8"
    at_8 = choose(candidates, at_batch_8=(0.5, 0.6, 0.7), batch=8)
    assert at_8.facts.winner == "fp32"
    assert at_8.facts.decision("int8").reason == "slower: 0.60x [0.50, 0.70] at batch 8"


def test_select_fails_when_a_speedup_is_required_and_there_is_none(choose: Choose) -> None:
    with pytest.raises(GateFailed, match=r"select\.min_speedup: 1x must be > 1\.03x"):
        choose({"int8": (0.5, 0.6, 0.7)}, require_speedup=True).raise_if_blocked()
    choose({"int8": (2.0, 2.5, 3.0)}, require_speedup=True).raise_if_blocked()


def test_select_keeps_the_reference_when_it_is_alone(choose: Choose) -> None:
    report = choose({})
    assert (report.facts.winner, len(report.facts.decisions)) == ("fp32", 1)


BUDGETS = [
    Budget(max_p50_ms={1: 1}),
    Budget(max_p90_ms={8: 1}),
    Budget(max_p99_ms={1: 1}),
    Budget(min_images_per_second={8: 1e6}),
    Budget(max_size_mb=1),
    Budget(max_peak_memory_mb=1),
]


@pytest.mark.parametrize("budget", BUDGETS, ids=lambda budget: next(iter(budget.model_fields_set)))
def test_select_fails_when_no_model_is_within_the_budget(choose: Choose, budget: Budget) -> None:
    [key] = budget.model_fields_set
    sizes = {"fp32": 44_000_000, "int8": 11_000_000}
    report = choose({"int8": (2.0, 2.5, 3.0)}, sizes=sizes, budget=budget)
    with pytest.raises(GateFailed, match=rf"^budget\.{key}: .*int8.*no candidate is within the budget\. Fix: "):
        report.raise_if_blocked()
    assert "over the budget" in report.facts.decision("fp32").reason


def test_select_takes_the_fastest_within_the_budget(choose: Choose) -> None:
    candidates: dict[str, Interval] = {"pruned": (3.0, 4.0, 5.0), "int8": (2.0, 2.5, 3.0)}
    sizes = {"fp32": 44_000_000, "pruned": 30_000_000, "int8": 11_000_000}
    report = choose(candidates, sizes=sizes, budget=Budget(max_size_mb=20, max_p99_ms={1: 3}))
    assert report.facts.winner == "int8"
    report.raise_if_blocked()
    assert [check.name for check in report.checks if check.passed] == [
        "select.min_speedup", "budget.max_p99_ms", "budget.max_size_mb",
    ]  # fmt: skip
    decision = report.facts.decision("pruned")
    assert not decision.accepted
    assert decision.reason == "over the budget (max_size_mb 20 MB, measured 30); 4.00x [3.00, 5.00] at batch 1"


def test_select_keeps_the_reference_when_only_slower_candidates_share_the_budget_with_it(choose: Choose) -> None:
    report = choose({"int8": (0.5, 0.6, 0.7)}, budget=Budget(max_p99_ms={1: 100}))
    assert report.facts.winner == "fp32"
    report.raise_if_blocked()


def test_select_takes_a_candidate_that_is_not_faster_when_the_reference_is_over_the_budget(choose: Choose) -> None:
    candidates: dict[str, Interval | str] = {"small": (0.9, 1.0, 1.1), "tiny": (0.5, 0.6, 0.7), "broken": "crashed"}
    sizes = {"fp32": 44_000_000, "small": 11_000_000, "tiny": 5_000_000}
    report = choose(candidates, sizes=sizes, budget=Budget(max_size_mb=20))
    assert report.facts.winner == "small"
    report.raise_if_blocked()
    assert report.facts.reason.endswith("at batch 1; the fastest within the budget, which fp32 is not")
    assert report.facts.decision("small").accepted
    assert not report.facts.decision("tiny").accepted
    assert report.facts.decision("broken").reason == "could not be measured: crashed"
    with pytest.raises(GateFailed, match=r"select\.min_speedup"):
        choose(candidates, sizes=sizes, budget=Budget(max_size_mb=20), require_speedup=True).raise_if_blocked()
