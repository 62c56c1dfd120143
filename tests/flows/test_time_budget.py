"""The search for candidates ends in time: what would end too late is not tried, and says so."""

import pytest

from flows.time_budget import ALWAYS_TRIED, TimeBudget
from gauntlet.core.errors import GateFailed


class Clock:
    """A clock that goes only when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def tried(budget: TimeBudget, clock: Clock, place: int, seconds: float) -> bool:
    """Try a recipe that takes a number of seconds; return whether there was time for it."""
    try:
        with budget.recipe(place):
            clock.now += seconds
    except GateFailed:
        return False
    return True


def test_recipes_that_take_equally_long_end_within_the_budget() -> None:
    clock = Clock()
    budget = TimeBudget(60, clock)
    clock.now += 12  # the passes and the calibration
    assert [tried(budget, clock, place, 11) for place in range(8)] == [True] * 4 + [False] * 4
    assert budget.used == 56


def test_recipe_that_would_probably_end_too_late_is_not_tried_and_says_why() -> None:
    clock = Clock()
    budget = TimeBudget(60, clock)
    assert [tried(budget, clock, place, seconds) for place, seconds in enumerate((20, 5, 5))] == [True] * 3
    clock.now += 11  # 41 s are used, and 19 s are left
    reason = "^not tried: 41 s of quantize_budget_s, 60 s, are used, and a recipe has taken up to 20 s$"
    with pytest.raises(GateFailed, match=reason), budget.recipe(3):
        pass


def test_first_recipes_are_tried_however_late_it_is() -> None:
    clock = Clock()
    budget = TimeBudget(60, clock)
    clock.now += 1e9
    assert [tried(budget, clock, place, 1) for place in range(ALWAYS_TRIED + 1)] == [True] * ALWAYS_TRIED + [False]


def test_recipe_that_fails_counts_as_well() -> None:
    clock = Clock()
    budget = TimeBudget(60, clock)
    with pytest.raises(GateFailed, match="too inaccurate"), budget.recipe(0):
        clock.now += 40
        raise GateFailed("too inaccurate")
    assert not tried(budget, clock, ALWAYS_TRIED, 1)


def test_passes_have_a_third_of_the_time_and_the_first_is_always_tried() -> None:
    clock = Clock()
    budget = TimeBudget(60, clock)
    assert budget.for_passes == 20
    clock.now += 19
    budget.require_time_for_pass(1)
    clock.now += 1
    budget.require_time_for_pass(0)
    with pytest.raises(GateFailed, match=r"^not tried: 20 s .* and graph passes have 20 s of it$"):
        budget.require_time_for_pass(1)


def test_repair_is_not_tried_where_it_may_end_too_late() -> None:
    clock = Clock()
    budget = TimeBudget(60, clock)
    clock.now += 50
    budget.require_time_for_repair(10)
    clock.now += 1
    with pytest.raises(GateFailed, match=r"^not tried: 51 s .* a repair may take 10 s \(repair.budget_s\)$"):
        budget.require_time_for_repair(10)


def test_without_a_limit_everything_is_tried() -> None:
    clock = Clock()
    budget = TimeBudget(None, clock)
    clock.now += 1e9
    budget.require_time_for_pass(9)
    budget.require_time_for_repair(120)
    assert tried(budget, clock, 99, 1)
    assert budget.for_passes is None
