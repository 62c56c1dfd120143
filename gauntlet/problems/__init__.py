"""What a model's outputs mean: one class per kind of problem; packages bring more (entry points `problem.TASK`)."""

from collections.abc import Mapping

from gauntlet.core.arrays import Array
from gauntlet.core.errors import ConfigError
from gauntlet.core.kinds import kinds, removed
from gauntlet.core.signature import Signature
from gauntlet.datasets.truth import task_of
from gauntlet.problems.arrays import Arrays
from gauntlet.problems.base import Problem
from gauntlet.problems.classification import Classification

PROBLEMS: dict[str, type[Problem]] = {"classification": Classification, "arrays": Arrays}


def problem_of(signature: Signature, labels: Array | None = None) -> Problem:
    """Return the problem that a signature names; where it names none, the one that `labels` belong to.

    Raises:
        ConfigError: when nothing that is installed knows the problem.
    """
    task = signature.task if signature.task != "arrays" else task_of(labels)
    known: Mapping[str, type[Problem]] = {**PROBLEMS, **kinds("problem")}
    if task not in known:
        raise ConfigError(f"the task {task} is unknown here (known: {', '.join(known)}). {removed(f'problem.{task}')}")
    return known[task](signature)
