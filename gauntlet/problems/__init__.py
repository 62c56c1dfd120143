"""What a model's outputs mean: one class per kind of problem."""

from gauntlet.core.signature import Signature
from gauntlet.problems.arrays import Arrays
from gauntlet.problems.classification import Classification

Problem = Classification | Arrays
PROBLEMS: dict[str, type[Problem]] = {"classification": Classification}


def problem_of(signature: Signature) -> Problem:
    """Return the problem that a signature names."""
    return PROBLEMS.get(signature.task, Arrays)(signature)
