"""Each objective has a winner of its own, proven better at it; speed alone decides nothing else."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from matmul_chains import chain
from synthetic_races import row, synthetic_race

from gauntlet.core.report import Report
from tasks.select import Decision, Fidelity, SelectConfig
from tasks.select.choose import choose as choose_winner

pytestmark = pytest.mark.slow
MB = 1_000_000
FAST, EQUAL, SLOW = (2.0, 2.5, 3.0), (0.98, 1.0, 1.02), (0.5, 0.6, 0.7)
LEAN, HEAVY = (1.4, 1.5, 1.6), (0.8, 0.9, 0.95)
SIZES = {"fp32": 40 * MB, "same": 40 * MB, "fast": 30 * MB, "small": 10 * MB, "tiny": 5 * MB, "lean": 20 * MB}
CANDIDATES = {
    "fast": (row(1, FAST, memory=HEAVY), row(8, EQUAL, memory=HEAVY)),
    "small": (row(1, EQUAL, memory=HEAVY), row(8, EQUAL, memory=HEAVY)),
    "tiny": (row(1, SLOW, memory=LEAN), row(8, SLOW, memory=LEAN)),
    "lean": (row(1, EQUAL, memory=LEAN), row(8, FAST, memory=LEAN)),
}


@pytest.fixture
def choose() -> Callable[..., Decision]:
    def run(candidates: dict[str, Any] = CANDIDATES, control: tuple[Any, ...] = (), **config: Any) -> Decision:
        race = synthetic_race(candidates, sizes=SIZES, control=control)
        fidelities = config.pop("fidelities", None)
        return choose_winner(SelectConfig(**config), race, fidelities=fidelities)[0]

    return run


@pytest.mark.parametrize(
    ("objective", "winner", "reason"),
    [
        ("latency", "fast", "2.50x [2.00, 3.00] the speed of fp32 at batch 1"),
        ("throughput", "lean", "objective throughput: 2.50x [2.00, 3.00] the samples a second of fp32 at batch 8"),
        ("size", "small", "objective size: 4.00x smaller than fp32, 1.00x [0.98, 1.02] its speed at batch 1"),
        (
            "memory",
            "lean",
            "objective memory: 1.50x [1.40, 1.60] less peak memory than fp32, 1.00x [0.98, 1.02] its speed at batch 1",
        ),
    ],
)
def test_each_objective_has_its_own_winner_and_the_reason_names_it(
    choose: Callable[..., Decision], objective: str, winner: str, reason: str
) -> None:
    facts = choose(objective=objective)
    assert (facts.objective, facts.winner, facts.reason) == (objective, winner, reason)


@pytest.mark.parametrize("objective", ["size", "memory"])
def test_candidate_that_is_proven_slower_does_not_win_by_its_size(
    choose: Callable[..., Decision], objective: str
) -> None:
    decision = choose(objective=objective).decision("tiny")
    assert not decision.accepted
    assert decision.reason.startswith("slower: ")
    assert decision.reason.endswith("0.60x [0.50, 0.70] at batch 1")


@pytest.mark.parametrize(
    ("objective", "expected"),
    [
        ("size", "not proven smaller: 1.00x smaller, 1.00x [0.98, 1.02] at batch 1"),
        ("memory", "not proven lower in memory: 1.00x [0.90, 1.10] less peak memory, 1.00x [0.98, 1.02] at batch 1"),
    ],
)
def test_reference_stays_when_no_candidate_is_proven_smaller(
    choose: Callable[..., Decision], objective: str, expected: str
) -> None:
    facts = choose({"same": (row(1, EQUAL, memory=(0.9, 1.0, 1.1)),)}, objective=objective)
    assert (facts.winner, facts.decision("same").reason) == ("fp32", expected)
    better = expected.removeprefix("not proven ").partition(":")[0]
    assert facts.reason == f"no candidate is proven {better} than fp32 by more than 1.05x"


def test_margin_of_a_reduction_is_set_by_the_user(choose: Callable[..., Decision]) -> None:
    facts = choose(objective="size", min_reduction=3.9)
    assert facts.winner == "small"
    assert facts.decision("lean").reason.startswith("smaller, but not by more than 3.9x: 2.00x smaller")
    assert choose(objective="size", min_reduction=4).winner == "fp32"


def test_memory_must_be_reduced_by_more_than_the_reference_differs_from_itself(choose: Callable[..., Decision]) -> None:
    control = (row(1, (1, 1, 1), memory=(1.0, 1.45, 2.0)),)
    assert choose(objective="memory").winner == "lean"
    assert choose(objective="memory", control=control).winner == "fp32"


def test_most_exact_of_equally_small_files_wins(choose: Callable[..., Decision]) -> None:
    candidates = {name: (row(1, speed),) for name, speed in (("small", FAST), ("lean", EQUAL))}
    exact = {"small": 30.0, "lean": 40.0}
    fidelities = {name: Fidelity(network="fp32", sqnr_db=value) for name, value in exact.items()}
    facts = choose(candidates, objective="size", fidelities=fidelities)
    assert facts.winner == "small"  # the other is twice its size
    facts = choose(candidates, objective="size", fidelities=fidelities, tie_tolerance=0.6)
    assert facts.winner == "lean"
    assert facts.reason.endswith("; the most exact of 2 equally small candidates")


def test_memory_that_was_not_measured_proves_nothing(choose: Callable[..., Decision]) -> None:
    assert choose({"small": (row(1, EQUAL),)}, objective="memory").winner == "fp32"


FRESH = {"restart_processes": True, "batch_sizes": (1,)}
"""A process for each round, so that its memory is that of one model."""


def heavy(products: int) -> onnx.ModelProto:
    """Return a chain with 32 MB of weights that it does not use."""
    model = chain(products)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(8_000_000, np.float32), "unused"))
    return model


@pytest.mark.parametrize("objective", ["size", "memory"])
def test_smaller_candidate_is_confirmed_by_a_race_of_its_own(
    confirmed: Callable[..., Report[Decision]], objective: str
) -> None:
    report = confirmed({"fp32": heavy(24), "other": chain(1)}, "other", objective=objective, **FRESH)
    assert (report.facts.winner, report.failures) == ("other", ())
    assert report.facts.reason.startswith(f"objective {objective}: ")
    [check] = [check for check in report.checks if check.name == "select.min_reduction"]
    assert check.passed
    [row_] = report.facts.confirmations[-1].rows
    assert row_.memory_ratio > 1.05


def test_fast_candidate_that_needs_more_memory_is_not_confirmed(confirmed: Callable[..., Report[Decision]]) -> None:
    models = {"fp32": chain(24), "other": heavy(1)}
    report = confirmed(models, "other", objective="memory", require_speedup=True, **FRESH)
    assert (report.facts.winner, report.facts.confirmations[0].confirmed) == ("fp32", False)
    assert report.facts.reason.startswith("other was lowest in memory, but not proven so again: ")
    assert [check.name for check in report.failures] == ["select.min_reduction"]
