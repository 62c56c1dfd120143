"""Which nodes to leave in float: the smallest set that is good enough, from a ranking and few questions."""

from collections.abc import Callable, Sequence

Nodes = frozenset[str]


def smallest_sufficient_set(
    ranking: Sequence[str], good: Callable[[Nodes], bool], in_time: Callable[[], bool] = lambda: True
) -> Nodes | None:
    """Return a small set of nodes, at least one, for which `good` holds; None where it does not hold for all of them.

    A prefix of the ranking is found by doubling and bisection, which takes the quality to rise with its length; then
    each of its nodes is tried without, the least important first.

    Args:
        ranking: the nodes, those that cost most first.
        good: whether leaving these nodes in float is enough; it may be costly.
        in_time: whether more may be asked. If not, the smallest set so far is the answer, or where none was good yet,
            the prefix that would have been asked about next.
    """
    enough = 1
    while in_time() and not good(frozenset(ranking[:enough])):
        if enough >= len(ranking):
            return None
        enough *= 2
    enough, least = min(enough, len(ranking)), enough // 2 + 1
    while least < enough and in_time():
        middle = (least + enough) // 2
        least, enough = (least, middle) if good(frozenset(ranking[:middle])) else (middle + 1, enough)
    chosen = frozenset(ranking[:enough])
    for node in reversed(ranking[:enough]):
        if len(chosen) > 1 and in_time() and good(chosen - {node}):
            chosen -= {node}
    return chosen
