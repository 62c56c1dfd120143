"""The search for candidates ends in time: what would end too late is not tried, and says so."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from flows.search.time_budget import RunLimit, TimeBudget
from gauntlet.core.errors import GateFailed


class Clock:
    """A clock that goes only when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_parts_of_a_run_s_time_are_no_more_than_is_left_or_is_set() -> None:
    assert RunLimit(100).part(0.3) == 30
    assert RunLimit(100).part(0.3, 20) == 20
    assert RunLimit(100, start=time.monotonic() - 1000).part(0.3) == 1
    assert [RunLimit().part(0.3, each) for each in (None, 60)] == [None, 60]


def tried(budget: TimeBudget, clock: Clock, place: int, seconds: float) -> bool:
    """Try a recipe that takes a number of seconds; return whether there was time for it."""
    try:
        with budget.recipe(place):
            clock.now += seconds
    except GateFailed:
        return False
    return True


def test_recipe_that_would_probably_end_too_late_for_a_repair_is_not_tried_and_says_why() -> None:
    clock = Clock()
    budget = TimeBudget(60, clock, for_repair_s=10)
    assert [tried(budget, clock, place, seconds) for place, seconds in enumerate((20, 5, 4))] == [True] * 3
    clock.now += 1  # 30 s are used, and 20 s are left for a recipe
    reason = "^30 s of .*, 60 s, are used, and a recipe has taken up to 20 s, and 10 s are kept for a repair$"
    with pytest.raises(GateFailed, match=reason), budget.recipe(3):
        pass
    budget.require_repair("repair.budget_s")
    clock.now += 21
    with pytest.raises(GateFailed, match=r"^51 s .* a repair may take 10 s \(repair.budget_s\)$"):
        budget.require_repair("repair.budget_s")


def test_repair_that_may_take_longer_than_all_the_time_leaves_recipes_two_thirds_of_it() -> None:
    clock = Clock()
    budget = TimeBudget(18, clock, for_repair_s=20)
    assert [tried(budget, clock, place, 4) for place in range(4)] == [True, True, False, False]


def test_first_recipe_is_tried_however_late_it_is() -> None:
    clock = Clock()
    budget = TimeBudget(60, clock)
    clock.now += 1e9
    assert [tried(budget, clock, place, 1) for place in range(2)] == [True, False]


def test_recipe_that_fails_counts_as_well() -> None:
    clock = Clock()
    budget = TimeBudget(60, clock)
    with pytest.raises(GateFailed, match="too inaccurate"), budget.recipe(0):
        clock.now += 40
        raise GateFailed("too inaccurate")
    assert not tried(budget, clock, 1, 1)


def test_passes_have_a_third_of_the_time_and_the_first_is_always_tried() -> None:
    clock = Clock()
    budget = TimeBudget(60, clock)
    assert budget.for_passes == 20
    clock.now += 19
    with budget.graph_pass(1):
        clock.now += 1
    with budget.graph_pass(0):
        pass
    late = r"^20 s .* and graph passes have 20 s of it$"
    with pytest.raises(GateFailed, match=late), budget.graph_pass(1):
        pass


def test_times_in_a_reason_are_rounded_and_what_is_not_kept_is_not_named() -> None:
    clock = Clock()
    budget, used = TimeBudget(1, clock), "^17 s of quantize_budget_s, 1 s, are used, and"
    clock.now += 17
    with pytest.raises(GateFailed, match=rf"{used} graph passes have 0\.3 s of it$"), budget.graph_pass(1):
        pass
    with pytest.raises(GateFailed, match=rf"{used} a recipe has taken up to 0 s$"), budget.recipe(1):
        pass


def test_recipes_side_by_side_are_not_tried_when_no_time_is_left_as_their_turn_comes() -> None:
    clock = Clock()
    budget = TimeBudget(60, clock)
    begun = threading.Barrier(9)

    def line(place: int) -> bool:
        begun.wait()
        return tried(budget, clock, place, 20)

    with ThreadPoolExecutor(8) as lines:
        with budget.recipe(0):  # the only worker is busy
            recipes = [lines.submit(line, place) for place in range(1, 9)]
            begun.wait()
            clock.now += 20
        results = [recipe.result() for recipe in recipes]
    assert sum(results) == 1


def test_as_many_recipes_are_at_work_as_there_are_workers() -> None:
    budget = TimeBudget(60, Clock(), at_once=3)
    together = threading.Barrier(3)

    def line(place: int) -> None:
        with budget.recipe(place):
            together.wait(30)

    with ThreadPoolExecutor(6) as lines:
        for recipe in [lines.submit(line, place) for place in range(6)]:
            recipe.result()


def test_first_places_come_first_among_those_that_wait() -> None:
    budget, order = TimeBudget(60, Clock()), list[int]()

    def line(place: int) -> None:
        with budget.recipe(place):
            order.append(place)

    with ThreadPoolExecutor(5) as lines:
        with budget.recipe(0):
            recipes = [lines.submit(line, place) for place in (4, 2, 5, 1, 3)]
            while len(budget._waiting) < len(recipes):
                time.sleep(0.001)
        for recipe in recipes:
            recipe.result()
    assert order == [1, 2, 3, 4, 5]


def test_without_a_limit_everything_is_tried() -> None:
    clock = Clock()
    budget = TimeBudget(None, clock)
    clock.now += 1e9
    budget.require_repair("repair.budget_s")
    with budget.graph_pass(9):
        pass
    assert tried(budget, clock, 99, 1)
    assert budget.for_passes is None
