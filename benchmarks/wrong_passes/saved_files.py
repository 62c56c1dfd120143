"""The outputs of a problem's files on disk, and how the product judges them with and without labels."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gauntlet.core.arrays import Array, NamedArrays, read_arrays
from gauntlet.core.frozen import Frozen
from gauntlet.core.report import Check
from gauntlet.core.signature import Signature
from gauntlet.datasets.golden import Golden
from gauntlet.problems.accuracy_checks import accuracy_checks
from gauntlet.problems.accuracy_comparison import AccuracyComparison, AccuracyLimits, compare_accuracy
from gauntlet.problems.base import Problem
from wings.detection.detection import Detection

LIMITS = AccuracyLimits()
LIMIT = LIMITS.max_accuracy_drop
Problem.resamples = Detection.resamples = 400  # of the bootstrap: fewer than in the product, for speed
FED_BACK = "fed back"
"""Among the saved outputs: the scores of a recurrent network that runs on its own states."""
INDEX, REFERENCE, TRUTH = "problem.json", "reference.npz", "truth.npz"


class DamagedFile(Frozen):
    """A quantized or damaged file, and what it loses of the primary metric."""

    name: str
    loss: float


class SavedProblem(Frozen):
    """A problem, what the FP32 model reaches, and its damaged files; number i has its outputs in `i.npz`."""

    name: str
    signature: Signature
    metric: str
    score: float
    files: tuple[DamagedFile, ...] = ()

    @classmethod
    def read(cls, folder: Path) -> "SavedProblem":
        """Read what `write` wrote."""
        return cls.model_validate_json((folder / INDEX).read_bytes())

    def write(self, folder: Path) -> None:
        """Write all but the outputs."""
        (folder / INDEX).write_text(self.model_dump_json(indent=1))


def save_outputs(folder: Path, name: str, outputs: NamedArrays) -> None:
    """Write float32 arrays of shape (n, ...)."""
    np.savez(folder / name, allow_pickle=False, **{key: array.astype(np.float32) for key, array in outputs.items()})


class JudgedFile(NamedTuple):
    """What the labels say of a file, and the checks that it fails without them.

    It is bad where labels prove that it loses more than the limit, and good where it passes every check with labels and
    keeps as many detections as the product promises.
    """

    file: DamagedFile
    bad: bool
    good: bool
    failed: list[Check]


def judged(folder: Path) -> Iterator[JudgedFile]:
    """Yield each file with the product's judgement of its outputs."""
    problem, reference = SavedProblem.read(folder), read_arrays(folder / REFERENCE)
    truth, signature = read_arrays(folder / TRUTH)["labels"], problem.signature
    for number in range(len(problem.files)):
        actual = read_arrays(folder / f"{number}.npz")
        without, labeled = (comparisons(signature, reference, actual, labels) for labels in (None, truth))
        loss = labeled[-1].change
        bad = loss is not None and loss.low > LIMIT
        keeps = all(facts.kept is None or facts.kept >= LIMITS.min_agreement for facts in without)
        good = not bad and keeps and not failed_checks(labeled)
        yield JudgedFile(problem.files[number], bad, good, failed_checks(without))


def comparisons(
    signature: Signature, reference: NamedArrays, actual: NamedArrays, labels: Array | None
) -> list[AccuracyComparison]:
    """Return the comparison of all outputs, and that of the scores of a network on its own states, if it has any."""
    names, main = [spec.name for spec in signature.outputs], signature.primary_output or ""
    pairs = [tuple({name: arrays[name] for name in names} for arrays in (reference, actual))]
    if FED_BACK in reference:
        pairs.append(({main: reference[FED_BACK]}, {main: actual[FED_BACK]}))
    return [compare_accuracy(Golden({}, expected, labels), signature, outputs) for expected, outputs in pairs]


def failed_checks(comparisons: list[AccuracyComparison]) -> list[Check]:
    """Return the product's checks that fail."""
    checks = [check for facts in comparisons for check in accuracy_checks(LIMITS, facts)]
    return [check for check in checks if check.blocks]
