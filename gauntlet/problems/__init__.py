"""What a model's outputs mean: one class per kind of problem."""

from gauntlet.core.signature import Signature, Task
from gauntlet.problems.arrays import Arrays
from gauntlet.problems.base import Problem
from gauntlet.problems.classification import Classification
from gauntlet.problems.embedding import Embedding
from gauntlet.problems.multi_label import MultiLabel
from gauntlet.problems.regression import Regression
from gauntlet.problems.segmentation import Segmentation
from gauntlet.problems.text import Text

PROBLEMS: dict[Task, type[Problem]] = {
    "classification": Classification,
    "multi-label": MultiLabel,
    "regression": Regression,
    "segmentation": Segmentation,
    "text": Text,
    "embedding": Embedding,
    "arrays": Arrays,
}


def problem_of(signature: Signature) -> Problem:
    """Return the problem that a signature names."""
    return PROBLEMS[signature.task](signature)
