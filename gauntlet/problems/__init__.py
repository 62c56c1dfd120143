"""What a model's outputs mean: one class per kind of problem."""

from gauntlet.core.arrays import Array
from gauntlet.core.signature import Signature, Task
from gauntlet.datasets.truth import task_of
from gauntlet.problems.arrays import Arrays
from gauntlet.problems.base import Problem
from gauntlet.problems.classification import Classification
from gauntlet.problems.detection import Detection
from gauntlet.problems.embedding import Embedding
from gauntlet.problems.multi_label import MultiLabel
from gauntlet.problems.regression import Regression
from gauntlet.problems.segmentation import Segmentation
from gauntlet.problems.text import Text

PROBLEMS: dict[Task, type[Problem]] = {
    "classification": Classification,
    "multi-label": MultiLabel,
    "regression": Regression,
    "detection": Detection,
    "segmentation": Segmentation,
    "text": Text,
    "embedding": Embedding,
    "arrays": Arrays,
}


def problem_of(signature: Signature, labels: Array | None = None) -> Problem:
    """Return the problem that a signature names; where it names none, the one that `labels` belong to."""
    return PROBLEMS[signature.task if signature.task != "arrays" else task_of(labels)](signature)
