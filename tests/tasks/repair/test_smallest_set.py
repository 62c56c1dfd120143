"""The search, apart from any model."""

import math
from collections.abc import Mapping
from time import monotonic

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.accuracy import AccuracyConfig
from tasks.repair.quality import Limits, QualitySummary
from tasks.repair.search import MixedPrecisionSearch, SearchBudget, smallest_sufficient_set
from tasks.repair.trial import Evaluator, Nodes, Speed, Trial

RANKING = st.integers(1, 24).flatmap(lambda n: st.permutations([f"node{i}" for i in range(n)]))


@given(ranking=RANKING, data=st.data())
def test_search_finds_exactly_the_nodes_that_matter(ranking: list[str], data: st.DataObject) -> None:
    culprits = frozenset(data.draw(st.sets(st.sampled_from(ranking), min_size=1)))
    asked: list[Nodes] = []

    def good(nodes: Nodes) -> bool:
        asked.append(nodes)
        return culprits <= nodes

    assert smallest_sufficient_set(ranking, good) == culprits
    prefix = max(ranking.index(node) + 1 for node in culprits)
    assert len(asked) <= 2 * len(ranking).bit_length() + prefix + 1


@given(ranking=RANKING)
def test_search_says_so_when_no_set_is_good(ranking: list[str]) -> None:
    assert smallest_sufficient_set(ranking, lambda nodes: False) is None


@given(ranking=RANKING)
def test_search_leaves_the_costliest_node_in_float_when_any_would_do(ranking: list[str]) -> None:
    assert smallest_sufficient_set(ranking, lambda nodes: True) == {ranking[0]}


@given(ranking=RANKING, questions=st.integers(0, 30), data=st.data())
def test_search_asks_no_more_when_time_is_up_and_keeps_what_it_has(
    ranking: list[str], questions: int, data: st.DataObject
) -> None:
    culprits = frozenset(data.draw(st.sets(st.sampled_from(ranking), min_size=1)))
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
        assert found == frozenset(ranking[: len(found)])
        assert all(nodes < found for nodes in answers)


class Known(Evaluator):
    """Knows signal to noise: predicted and real by the nodes in float, `alone` by the one node in integers."""

    def __init__(self, alone: Mapping[str, float], predicted: Mapping[str, float], real: Mapping[str, float]) -> None:
        self.ranks, self.predicted, self.real = alone, predicted, real
        self.asked: list[str] = []

    @property
    def nodes(self) -> Nodes:
        return frozenset(self.ranks)

    def alone(self, node: str) -> QualitySummary:
        self.asked.append(node)
        return quality(self.ranks[node])

    def predict(self, nodes: Nodes) -> QualitySummary:
        return quality(self.predicted.get("".join(sorted(nodes)), -99))

    def evaluate(self, nodes: Nodes) -> QualitySummary:
        return quality(self.real["".join(sorted(nodes))])

    def race(self) -> Speed:
        return Speed(speedup=2, low=1.9, high=2.1)


GATE = Limits(AccuracyConfig(), min_sqnr_db=20, test_images=100)
ABCD = {"a": 10, "b": 20, "c": 30, "d": 40}


def quality(sqnr_db: float) -> QualitySummary:
    return QualitySummary(paired=None, top1_agreement=1, cosine=1, sqnr_db=sqnr_db)


def searched(evaluator: Known, *, whole_first: bool = False, **effort: float) -> tuple[MixedPrecisionSearch, Trial]:
    search = MixedPrecisionSearch(
        SearchBudget.model_validate(effort), GATE, evaluator, start=monotonic(), whole_first=whole_first
    )
    return search, search.run(before=quality(5))


def sets(search: MixedPrecisionSearch) -> list[str]:
    return ["".join(attempt.float_nodes) for attempt in search.trials]


def test_set_is_judged_by_the_gate_alone_when_a_prediction_must_reach_more() -> None:
    search, best = searched(Known(ABCD, {"a": 25, "ab": 1000}, {"a": 15, "ab": 30}), sqnr_margin_db=100)
    assert sets(search) == ["a", "ab"]
    assert [attempt.good for attempt in search.trials] == [False, True]
    assert (best, search.stopped) == (search.trials[1], "found")


def test_numbers_that_are_none_are_the_worst() -> None:
    alone = ABCD | {"d": math.nan}
    search, best = searched(Known(alone, {"d": 25, "ad": 30}, {"d": math.nan, "ad": 3}), max_trials=2)
    assert search.order == ("d", "a", "b", "c")
    assert (best.quality.sqnr_db, search.stopped) == (3, "evaluations used up")


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
