"""The search, apart from any model."""

import math
from collections.abc import Mapping
from itertools import chain
from time import monotonic

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.accuracy import AccuracyConfig
from wings.repair.quality import Limits, QualitySummary
from wings.repair.search import MixedPrecisionSearch, SearchBudget, smallest_sufficient_set
from wings.repair.switchable_model import Unit
from wings.repair.trial import Evaluator, Nodes, Speed, Trial

RANKING = st.integers(1, 24).flatmap(lambda n: st.permutations([(f"a{i}", f"b{i}") for i in range(n)]))


@given(ranking=RANKING, data=st.data())
def test_search_finds_exactly_the_nodes_that_matter(ranking: list[Unit], data: st.DataObject) -> None:
    units = data.draw(st.sets(st.sampled_from(ranking), min_size=1))
    culprits = frozenset(chain.from_iterable(units))
    asked: list[Nodes] = []

    def good(nodes: Nodes) -> bool:
        asked.append(nodes)
        return culprits <= nodes

    assert smallest_sufficient_set(ranking, good) == culprits
    prefix = max(ranking.index(unit) + 1 for unit in units)
    assert len(asked) <= 2 * len(ranking).bit_length() + prefix + 1


@given(ranking=RANKING)
def test_search_says_when_no_set_is_good_and_takes_the_costliest_node_when_any_is(ranking: list[Unit]) -> None:
    assert smallest_sufficient_set(ranking, lambda nodes: False) is None
    assert smallest_sufficient_set(ranking, lambda nodes: True) == set(ranking[0])


@given(ranking=RANKING, questions=st.integers(0, 30), data=st.data())
def test_search_asks_no_more_when_time_is_up_and_keeps_what_it_has(
    ranking: list[Unit], questions: int, data: st.DataObject
) -> None:
    culprits = frozenset(chain.from_iterable(data.draw(st.sets(st.sampled_from(ranking), min_size=1))))
    answers: dict[Nodes, bool] = {}

    def good(nodes: Nodes) -> bool:
        answers[nodes] = culprits <= nodes
        return answers[nodes]

    found = smallest_sufficient_set(ranking, good, lambda: len(answers) < questions)
    assert len(answers) <= questions
    enough = [nodes for nodes, is_good in answers.items() if is_good]
    if enough:
        assert found == min(enough, key=len)
    elif found is not None:  # a prefix longer than all that were asked about
        assert found == frozenset(chain.from_iterable(ranking[: len(found) // 2]))
        assert all(nodes < found for nodes in answers)


class Known(Evaluator):
    """Knows signal to noise: predicted and real by the nodes in float, `alone` by the nodes in integers.

    Each node is a unit, and their noise adds up.
    """

    def __init__(self, alone: Mapping[str, float], predicted: Mapping[str, float], real: Mapping[str, float]) -> None:
        self.ranks, self.predicted, self.real = alone, predicted, real
        self.asked: list[Nodes] = []
        self.speeds: list[Speed] = []

    @property
    def nodes(self) -> Nodes:
        return frozenset(self.ranks)

    @property
    def units(self) -> tuple[Unit, ...]:
        return tuple((name,) for name in self.ranks)

    def alone(self, nodes: Nodes) -> QualitySummary:
        self.asked.append(nodes)
        return quality(-10 * math.log10(sum(10 ** (-self.ranks[name] / 10) for name in nodes)))

    def predict(self, nodes: Nodes) -> QualitySummary:
        return quality(self.predicted.get("".join(sorted(nodes)), -99))

    def evaluate(self, nodes: Nodes) -> QualitySummary:
        return quality(self.real["".join(sorted(nodes))])

    def race(self) -> Speed:
        return self.speeds.pop(0) if self.speeds else Speed(speedup=2, low=1.9, high=2.1)


GATE = Limits(AccuracyConfig(), test_images=100, headroom_db=20)
ABCD = {"a": 10, "b": 20, "c": 30, "d": 40}


def quality(sqnr_db: float) -> QualitySummary:
    return QualitySummary(change=None, sqnr_db=sqnr_db, headroom_db=sqnr_db)


def searched(evaluator: Known, *, whole_first: bool = False, **effort: float) -> tuple[MixedPrecisionSearch, Trial]:
    search = MixedPrecisionSearch(
        SearchBudget.model_validate(effort), GATE, evaluator, start=monotonic(), whole_first=whole_first
    )
    return search, search.run(before=quality(5))


def sets(search: MixedPrecisionSearch) -> list[str]:
    return ["".join(attempt.float_nodes) for attempt in search.trials]


def test_set_is_judged_by_the_gate_alone_when_a_prediction_must_reach_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wings.repair.search.SQNR_MARGIN_DB", 100)
    search, best = searched(Known(ABCD, {"a": 25, "ab": 1000}, {"a": 15, "ab": 30}))
    assert sets(search) == ["a", "ab"]
    assert [attempt.good for attempt in search.trials] == [False, True]
    assert (best, search.stopped) == (search.trials[1], "found")


def test_predictions_that_make_the_same_file_worse_than_all_images_ask_for_no_more_nodes() -> None:
    search, best = searched(Known(ABCD, {"": -1, "a": 15, "ab": 24}, {"a": 21, "ab": 30}))
    assert sets(search) == ["a"]
    assert best.good


def test_numbers_that_are_none_are_the_worst(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wings.repair.search.MAX_TRIALS", 2)
    alone = ABCD | {"d": math.nan}
    search, best = searched(Known(alone, {"d": 25, "ad": 30}, {"d": math.nan, "ad": 3}))
    assert search.order == (("d",), ("a",), ("b",), ("c",))
    assert (best.quality.sqnr_db, search.stopped) == (3, "evaluations used up")


@pytest.mark.parametrize(("joined_speed", "chosen"), [(2.0, "abc"), (1.5, "ac")])
def test_short_gap_between_float_units_is_closed_unless_that_is_proven_slower(joined_speed: float, chosen: str) -> None:
    evaluator = Known({"a": 10, "b": 30, "c": 12, "d": 40}, {"ac": 25, "abc": 26}, {"ac": 25, "abc": 26})
    evaluator.speeds = [Speed(speedup=s, low=s - 0.1, high=s + 0.1) for s in (2.0, joined_speed)]
    search, best = searched(evaluator)
    assert [set(each) for each in sets(search)] == [set("ac"), set("abc")]
    assert set(best.float_nodes) == set(chosen)
    assert search.stopped == "found"


@pytest.mark.parametrize(("seconds_per_image", "images"), [(0.0, 64), (0.01, 64), (0.06, 33), (1.0, 16)])
def test_prediction_for_a_slow_network_takes_fewer_images(seconds_per_image: float, images: int) -> None:
    evaluator = Known({}, {}, {})
    evaluator.prediction_s, evaluator.seconds_per_image = 2.0, seconds_per_image
    assert evaluator.prediction_images == images


def test_culprits_among_many_units_are_ranked_first_by_few_passes() -> None:
    noise_db = {f"{place:03}": 60.0 for place in range(128)} | {"037": 12.0, "105": 8.0}
    evaluator = Known(noise_db, {}, {})
    search = MixedPrecisionSearch(SearchBudget(), GATE, evaluator, start=monotonic())
    assert [unit for (unit,) in search.order[:2]] == ["105", "037"]
    assert sorted(search.order) == sorted(evaluator.units)
    assert [round(each.sqnr_db) for each in search.ranking] == [8, 12]  # the others are negligible
    assert len(evaluator.asked) == 1 + 2 * 7 + 2 * 6  # all, and both halves of each group that has a culprit


def test_units_that_there_was_no_time_to_rank_come_last_the_noisiest_group_first() -> None:
    evaluator = Known({"a": 40, "b": 40, "c": 40, "d": 10}, {}, {})
    search = MixedPrecisionSearch(SearchBudget(), GATE, evaluator, start=monotonic())
    search._in_time = lambda _share=1.0: len(evaluator.asked) < 3  # type: ignore[method-assign]
    assert search.order == (("c",), ("d",), ("a",), ("b",))
    assert search.ranking == ()


def test_set_that_fell_short_is_not_evaluated_again_when_no_noise_was_predicted() -> None:
    """So it is where a model's only output is a class: its answers have no noise that could tell what is lacking."""
    search, best = searched(Known(ABCD, {"a": math.inf, "ab": math.inf}, {"a": 15, "ab": 30}))
    assert sets(search) == ["a", "ab"]
    assert best.good


def test_nothing_is_ranked_when_the_whole_model_is_tried_first_and_is_good_enough() -> None:
    evaluator = Known(ABCD, {"": 30}, {"": 30})
    search, best = searched(evaluator, whole_first=True)
    assert (sets(search), search.stopped, evaluator.asked) == ([""], "found", [])
    assert best.good


@pytest.mark.parametrize(("predicted", "chosen"), [(15, "a"), (25, "ab")])
def test_prediction_must_reach_more_when_that_of_the_whole_model_was_too_good(predicted: float, chosen: str) -> None:
    evaluator = Known(ABCD, {"": predicted, "a": 22, "ab": 40}, {"": 15, "a": 22, "ab": 40})
    search, best = searched(evaluator, whole_first=True)
    assert sets(search) == ["", chosen]
    assert best.good
