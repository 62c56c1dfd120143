"""SIGKILL at random moments, as `benchmarks/random_kills.py` does it thirty times: nothing is lost, nothing doubled."""

from collections.abc import Iterator

import pytest
from random_kills import VICTIMS, Outcome, storm

from wings.machines.library.object_store_client import connect

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1800)]
KILLS, SEED, SPAN_S = 3, 3, 20


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outcome]:
    connect.cache_clear()
    yield storm(tmp_path_factory.mktemp("storm"), KILLS, SEED, SPAN_S)
    connect.cache_clear()


def test_each_kill_meets_another_part(outcome: Outcome) -> None:
    assert len(set(outcome.killed) & set(VICTIMS)) == KILLS


def test_no_result_is_lost_and_none_is_published_twice(outcome: Outcome) -> None:
    assert all(codes[-1] == 0 for codes in outcome.exits)
    assert outcome.lost == []
    assert outcome.twice == []


def test_no_two_benchmarks_ran_side_by_side(outcome: Outcome) -> None:
    assert outcome.looks > 0
    assert outcome.side_by_side == 0
