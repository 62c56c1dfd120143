"""What a candidate is proven to lose in a single class or number, however rare it is and however good the rest."""

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from scipy.special import betaincinv, ndtri

from gauntlet.core.arrays import Array, Floats
from gauntlet.core.frozen import Frozen, Number
from gauntlet.metrics.class_scores import ClassCounts, label_of
from gauntlet.metrics.paired_accuracy import added_half_width

RISK = 0.025
"""Of a lower bound: it is the lower end of a 95 % interval."""
RESAMPLES = 1000
MIN_IMAGES = 8
"""Fewer images of a class tell nothing by being drawn again."""
MAX_VALUES, LARGEST_MAPS = 64, 10_000_000
"""Of an output whose values may be classes, and how many of them are compared."""
Share = tuple[Floats, Floats]
"""Counts by image and class, and what they are a part of, both of shape (n, classes)."""


class ClassDrop(Frozen):
    """The largest drop of a class's recall or precision, or of a number's R², or change of a mean, that is proven.

    Without labels, a class that is predicted less often loses recall, and one that is predicted more often precision.
    """

    part: Literal["class", "number", "mean"] = "class"
    label: str
    images: int
    changed: str
    """How its predictions changed, for people."""
    drop_low: Number
    """Lower end of the 95 % interval of the drop."""

    @property
    def text(self) -> str:
        """For people, what is lost where."""
        return f"{self.part} '{self.label}': {self.changed}; at least this much"


def largest_number_drop(before: Array, after: Array, labels: Sequence[str], truth: Array) -> ClassDrop | None:
    """Compare the R² of each number that two models predict, shape (n, numbers); None where no number varies.

    The lower bound is that of a mean over the samples, wider as if one more of each were lost, and one gained. All
    numbers share the risk (Bonferroni).
    """
    expected, count = truth.astype(np.float64).reshape(before.shape), len(before)
    varying = np.flatnonzero(expected.var(axis=0) > 1e-12 * (expected**2).mean(axis=0))
    if not len(varying):
        return None
    known: Floats = expected[:, varying]
    deviations: Floats = (known - known.mean(axis=0)) ** 2
    variance: Floats = deviations.mean(axis=0)
    first, last = ((predicted[:, varying].astype(np.float64) - known) ** 2 for predicted in (before, after))
    lost: Floats = (last - first) / variance
    drops: Floats = lost.mean(axis=0)
    spread: Floats = (lost - drops * deviations / variance).std(axis=0)
    lows = drops - _half_width(spread, count, RISK / len(varying))
    worst = int(np.argmax(lows))
    earlier, now = (float(1 - errors[:, worst].mean() / variance[worst]) for errors in (first, last))
    changed, label = f"R² {earlier:.3f} before, {now:.3f} now", label_of(labels, int(varying[worst]))
    return ClassDrop(part="number", label=label, images=count, changed=changed, drop_low=float(lows[worst]))


def largest_drop(before: Array, after: Array, labels: Sequence[str], truth: Array | None = None) -> ClassDrop | None:
    """Compare the class numbers that two models predict, with the true ones if they are known, all of shape (n,).

    What changed for the worse is counted. From the exact lower bound of its share (Clopper and Pearson, Biometrika 26,
    1934) the share that changed for the better is taken away. All classes share the risk (Bonferroni), those that only
    the candidate predicts, too.
    """
    numbers = np.unique(np.concatenate([before, after, before if truth is None else truth])).astype(np.int64)
    drops, risk = list[ClassDrop](), RISK / max(1, len(numbers))
    for number in numbers[numbers >= 0].tolist():
        was, now, name = before == number, after == number, label_of(labels, number)
        left, joined = was & ~now, now & ~was
        own, other = (truth == number, truth != number) if truth is not None else (left | joined, left | joined)
        shown = was if truth is None else own
        drops.append(_drop(name, "{} of {} samples lost, {} gained", left & own, joined & own, shown, risk))
        drops.append(_drop(name, "{} of {} predictions new, {} gone", joined & other, left & other, now, risk))
    return largest(drops)


def mean_change(label: str, before: Floats, after: Floats) -> ClassDrop:
    """Compare what two models give for each sample, shape (n,), by the means; in either direction, it is a loss."""
    change, changed = after - before, f"{before.mean():.3f} before, {after.mean():.3f} now, {len(before)} samples"
    low = abs(change.mean()) - _half_width(change.std(), len(before), RISK)
    return ClassDrop(part="mean", label=label, images=len(before), changed=changed, drop_low=float(low))


def _half_width(spread: Any, count: int, risk: float) -> Any:
    """Return the half width of the interval of means of `count` values, one of which more may be lost, and gained."""
    return np.hypot(float(ndtri(1 - risk)) * spread / np.sqrt(count), added_half_width(count))


def unusual(values: Array) -> npt.NDArray[np.bool_]:
    """Return which integers or booleans are not the most frequent one, as padding and a silent alarm are."""
    known, counts = np.unique(values, return_counts=True)
    return values != known[counts.argmax()] if len(known) else np.zeros(values.shape, bool)


def largest_value_drop(output: str, before: Array, after: Array) -> ClassDrop | None:
    """Compare the values of an output of integers, booleans or texts, shape (n, ...), as if each were a class.

    One in a hundred may be what the output is for, as an alarm. None where there are many: these are no classes. Of
    very large maps, an evenly spaced part of the samples is compared.
    """
    before, after = (array[:: 1 + array.size // LARGEST_MAPS] for array in (before, after))
    values = np.unique(np.stack([before, after]))
    if not 1 < len(values) <= MAX_VALUES:
        return None
    names = [f"{value} of output '{output}'" for value in values.tolist()]
    one, other = (np.searchsorted(values, part).reshape(len(part), -1) for part in (before, after))
    if one.shape[1] == 1:
        return largest_drop(one[:, 0], other[:, 0], names)
    parts = (np.where(one == other, one, -1), other, one)
    numbers = range(len(values))
    hits, predicted, actual = (np.stack([(part == n).sum(axis=1) for n in numbers], 1, dtype=float) for part in parts)
    return largest_change(ClassCounts(hits, predicted, actual), names)


def _drop(name: str, changed: str, worse: Array, better: Array, images: Array, risk: float) -> ClassDrop:
    lost, gained, count = (int(part.sum()) for part in (worse, better, images))
    low = float(betaincinv(lost, count - lost + 1, risk)) if lost else 0.0
    changed = changed.format(lost, count, gained)
    return ClassDrop(label=name, images=count, changed=changed, drop_low=low - gained / max(count, 1))


def largest_counted_drop(before: ClassCounts, after: ClassCounts, labels: Sequence[str]) -> ClassDrop | None:
    """Compare what two models find of each class in images, by a paired percentile bootstrap over the images.

    The objects and the pixels of one image depend on each other, images do not (Efron and Tibshirani, An Introduction
    to the Bootstrap, 1993). A class in fewer than eight images loses recall only where it vanishes from images, by the
    exact bound of their share.
    """
    recall = (before.hits, before.actual), (after.hits, after.actual)
    precision = (before.hits, before.predicted), (after.hits, after.predicted)
    drops = [*_counted(*recall, "recall {} before, {} now", labels)]
    return largest([*drops, *_counted(*precision, "precision {} before, {} now", labels)])


def largest_change(counts: ClassCounts, labels: Sequence[str]) -> ClassDrop | None:
    """Compare the same where `counts` are a candidate's, and the reference's predictions stand for the truth."""
    own, now = counts.actual, counts.predicted
    less = _counted((own, own), (now, own), "predicted {1} times as often", labels)
    return largest([*less, *_counted((own, own), (own, now), "{1} of its predictions were there before", labels)])


def _counted(before: Share, after: Share, text: str, labels: Sequence[str]) -> Iterator[ClassDrop]:
    generator = np.random.default_rng(0)
    occurring = np.flatnonzero(sum(part.any(axis=0) for part in (*before, *after))).tolist()
    for number in occurring:
        parts = np.stack([part[:, number] for part in (*before, *after)], axis=1)
        parts = parts[parts.any(axis=1)]
        images, of_same = len(parts), bool((parts[:, 1] == parts[:, 3]).all())
        if images >= MIN_IMAGES:
            drawn = generator.multinomial(images, np.full(images, 1 / images), RESAMPLES)
            low = float(np.percentile(np.subtract(*_shares(drawn @ parts)), 100 * RISK))
        elif of_same and (vanished := int(((parts[:, 0] > 0) & (parts[:, 2] == 0)).sum())):
            low = float(betaincinv(vanished, images - vanished + 1, RISK / len(occurring)))
        else:
            continue
        shares = (f"{float(share[0]):.3f}" for share in _shares(parts.sum(axis=0, keepdims=True)))
        changed = f"{text.format(*shares)}, {images} samples"
        yield ClassDrop(label=label_of(labels, number), images=images, changed=changed, drop_low=low)


def _shares(sums: Floats) -> tuple[Floats, Floats]:
    """Return the first column over the second, and the third over the fourth; 1 where nothing is shown."""
    parts = np.divide(sums[:, ::2], sums[:, 1::2], out=np.ones((len(sums), 2)), where=sums[:, 1::2] > 0)
    return parts[:, 0], parts[:, 1]


def largest(drops: Sequence[ClassDrop | None]) -> ClassDrop | None:
    """Return the drop of which most is proven; None without any."""
    return max(filter(None, drops), key=lambda drop: drop.drop_low, default=None)
