"""A text per sample: scores by position (connectionist temporal classification, CTC), numbers of labels, or strings."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from gauntlet.core.arrays import Array, Floats, NamedArrays
from gauntlet.metrics.class_scores import ClassCounts
from gauntlet.problems.base import Problem, WeightedMetric, beliefs, ratio
from gauntlet.problems.prediction import Prediction

BLANK = 0
"""The class that stands for no character, as in PyTorch's and PaddleOCR's CTC; label i is class i + 1."""


class TextPrediction(Prediction):
    """The text that was read."""

    characters: str

    def lines(self) -> list[str]:
        """Return the text."""
        return [self.characters]


@dataclass(frozen=True)
class Text(Problem):
    """Scores of each character by position, shape (n, positions, 1 + labels), or decoded texts.

    A decoder in the graph returns strings, shape (n,), or numbers of labels, shape (n, positions): others are padding.

    Of a model whose batch is the second axis, called once a sample, they have shape (n, positions, 1, 1 + labels).

    The best path: the best class of each position, repeats joined, blanks dropped (Graves et al., ICML 2006). One minus
    the character error rate is primary.
    """

    metric: ClassVar[str] = "character_accuracy"
    differing: ClassVar[str] = "lines of text differ"

    def decode(self, outputs: NamedArrays) -> Iterator[TextPrediction]:
        """Yield the text of each sample."""
        texts = self.predictions(outputs[self.primary_output])
        for text in () if texts is None else texts.tolist():
            yield TextPrediction(characters=text)

    def predictions(self, output: Array) -> Array | None:
        """Return the texts, shape (n,)."""
        output = by_position(output)
        if output.dtype.kind == "U":
            return output.reshape(len(output)) if output.size == len(output) else None
        if output.dtype.kind in "iu" and output.ndim == 2 and (labels := self.signature.labels):
            known = range(len(labels))
            return np.array(["".join(labels[i] for i in row if i in known) for row in output.tolist()], np.str_)
        if output.dtype.kind != "f" or output.ndim != 3 or output.shape[2] != len(self.signature.labels) + 1:
            return None
        return np.array([self._text(row) for row in output.argmax(axis=2).tolist()], np.str_)

    def _text(self, path: Sequence[int]) -> str:
        labels = self.signature.labels
        changes = (c for i, c in enumerate(path) if c != BLANK and (i == 0 or c != path[i - 1]))
        return "".join(labels[c - 1] for c in changes)

    def statistics(self, predictions: Array, truth: Array) -> Floats:
        """Return per sample: edits to the truth, its characters, the same of words, whether both are equal, and 1."""
        pairs = list(zip(predictions.tolist(), truth.tolist(), strict=True))
        rows = [
            (edit_distance(text, label), len(label), edit_distance(text.split(), words), len(words), text == label, 1)
            for text, label in pairs
            for words in [label.split()]
        ]
        return np.array(rows, np.float64)

    def same(self, before: Array, after: Array) -> npt.NDArray[np.bool_]:
        """Return for which samples both read the same text."""
        return np.asarray(before == after)

    def expected_drop(self, outputs: NamedArrays, before: Array, after: Array) -> WeightedMetric:
        """Return the drop of the characters that are right, by the edits and the reference's own probabilities.

        An edit changes what the reference is least certain of: k edits are expected to lose 2p - 1 at each of the k
        characters of the best path with the lowest probabilities p, and all of what is no character of it.
        """
        edits = [edit_distance(a, b) for a, b in zip(after.tolist(), before.tolist(), strict=True)]
        characters, scores = np.array([len(text) for text in before.tolist()], float), outputs[self.primary_output]
        belief = beliefs(scores, 2) if scores.dtype.kind == "f" and scores.ndim == 3 else None
        lost = 0.5 * np.array(edits)
        if belief is not None:
            best, read = belief.max(axis=2), belief.argmax(axis=2) != BLANK
            costs = np.sort(np.where(read, np.clip(2 * best - 1, 0, 1), 1), axis=1)
            lost = np.array([row[:k].sum() + max(0, k - len(row)) for row, k in zip(costs, edits, strict=True)])
        return lambda weights: ratio(weights @ lost, weights @ characters)

    def missing_evidence(self, before: Array) -> str:
        """Return that no text is read, if so."""
        return "" if any(before.tolist()) else "no text is read"

    def class_counts(self, predictions: Array, truth: Array) -> ClassCounts | None:
        """Return how often each character is in a text, and in both texts wherever it is; None without an alphabet."""
        alphabet = self.signature.labels
        if not alphabet:
            return None
        predicted, actual = (
            np.array([[text.count(character) for character in alphabet] for text in texts.tolist()], np.float64)
            for texts in (predictions, truth)
        )
        return ClassCounts(np.minimum(predicted, actual), predicted, actual)

    def scores(self, sums: Floats) -> dict[str, Floats]:
        """Return 1 - character error rate, 1 - word error rate, and the share of texts without an error."""
        right, words = (1 - ratio(sums[..., i], sums[..., i + 1]) for i in (0, 2))
        return {"character_accuracy": right, "word_accuracy": words, "exact_match": sums[..., 4] / sums[..., 5]}


def by_position(scores: Array) -> Array:
    """Return scores of shape (n, positions, 1, classes) as (n, positions, classes), and others as they are."""
    return scores[:, :, 0] if scores.ndim == 4 and scores.shape[2] == 1 else scores


def edit_distance(text: Sequence[str], other: Sequence[str]) -> int:
    """Return the least number of insertions, deletions and substitutions (Levenshtein, 1966)."""
    row = list(range(len(other) + 1))
    for i, a in enumerate(text, 1):
        before, row[0] = row[0], i
        for j, b in enumerate(other, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (a != b))
    return row[-1]
