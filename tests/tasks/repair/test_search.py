"""The search and its journal, apart from any model."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tasks.frozen import JsonObject
from tasks.repair.journal import Journal
from tasks.repair.search import Nodes, smallest

RANKING = st.integers(1, 24).flatmap(lambda n: st.permutations([f"node{i}" for i in range(n)]))


@given(ranking=RANKING, data=st.data())
def test_search_finds_exactly_the_nodes_that_matter(ranking: list[str], data: st.DataObject) -> None:
    culprits = frozenset(data.draw(st.sets(st.sampled_from(ranking), min_size=1)))
    asked: list[Nodes] = []

    def good(nodes: Nodes) -> bool:
        asked.append(nodes)
        return culprits <= nodes

    assert smallest(ranking, good) == culprits
    prefix = max(ranking.index(node) + 1 for node in culprits)
    assert len(asked) <= 2 * len(ranking).bit_length() + prefix + 1


@given(ranking=RANKING)
def test_search_says_so_when_no_set_is_good(ranking: list[str]) -> None:
    assert smallest(ranking, lambda nodes: False) is None


@given(ranking=RANKING)
def test_search_leaves_the_costliest_node_in_float_when_any_would_do(ranking: list[str]) -> None:
    assert smallest(ranking, lambda nodes: True) == {ranking[0]}


@given(ranking=RANKING, questions=st.integers(0, 30), data=st.data())
def test_search_asks_no_more_when_time_is_up_and_keeps_what_it_has(
    ranking: list[str], questions: int, data: st.DataObject
) -> None:
    culprits = frozenset(data.draw(st.sets(st.sampled_from(ranking), min_size=1)))
    answers: dict[Nodes, bool] = {}

    def good(nodes: Nodes) -> bool:
        answers[nodes] = culprits <= nodes
        return answers[nodes]

    found = smallest(ranking, good, lambda: len(answers) < questions)
    assert len(answers) <= questions
    enough = [nodes for nodes, is_good in answers.items() if is_good]
    if enough:
        assert found == min(enough, key=len)
    elif found is not None:  # a prefix longer than all that were asked about
        assert found == frozenset(ranking[: len(found)])
        assert all(nodes < found for nodes in answers)


def test_journal_asks_nothing_twice_and_forgets_a_line_that_was_cut_short(tmp_path: Path) -> None:
    asked: list[int] = []

    def find_out() -> JsonObject:
        asked.append(1)
        return {"value": "NaN"}

    path = tmp_path / "journal.jsonl"
    first = Journal(path)
    assert [first.answer(q, find_out) for q in "aab"] == [{"value": "NaN"}] * 3
    assert (len(asked), len(first)) == (2, 2)
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    again = Journal(path)
    assert len(again) == 1
    assert again.seconds > 0
    again.answer("b", find_out)
    assert len(asked) == 3
    assert [len(Journal(path)), path.read_bytes().count(b"\n")] == [2, 2]
