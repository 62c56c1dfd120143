"""The calibration samples as calls of the model, read a few at a time."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from tasks.data.dataset import Arrays, Split
from tasks.errors import StageError
from tasks.runtime.calls import calls
from tasks.runtime.graph import one_line

BATCH = 8


@dataclass(frozen=True)
class Feeds:
    """The first samples of a split, in their order."""

    split: Split
    samples: int
    batch: int
    smallest_batch: int

    @classmethod
    def of(cls, session: Any, split: Split, wanted: int) -> "Feeds":
        """Return the first `wanted` samples, or all that there are, in at least four calls where that can be.

        A model with a fixed batch gets only as many as fill its calls: the copies that would fill up the last one would
        be counted as samples. Where there are too few for one call, there is no other way.
        """
        samples = min(wanted, len(split))
        first = calls(session, split.take(slice(0, 1)))
        smallest = first.batch(1)
        whole = samples - samples % smallest if samples >= smallest else samples
        return cls(split, whole, first.batch(max(1, min(BATCH, samples // 4))), smallest)

    def limited(self, most: int) -> "Feeds":
        """Return the same samples with at most so many in a call, as far as the model leaves the choice."""
        return replace(self, batch=max(self.smallest_batch, min(self.batch, most)))

    @property
    def marks(self) -> tuple[int, ...]:
        """The numbers of samples at which the statistics are kept: half, and all."""
        return tuple(sorted({max(1, self.samples // 2), self.samples}))

    def passed(self, seen: int) -> list[int]:
        """Return the marks behind so many samples. At the end only the last one: all are no statistic of a half."""
        return [mark for mark in self.marks if mark <= seen < self.samples or mark == seen]

    def run(self, session: Any, outputs: list[str], batch: int) -> Iterator[tuple[Arrays, int]]:
        """Yield the inputs and outputs of each call, and how many samples have been seen after it.

        Raises:
            StageError: when the samples do not fit the model, or the runtime fails.
        """
        for start in range(0, self.samples, batch):
            part = calls(session, self.split.take(slice(start, min(start + batch, self.samples))))
            size = part.batch(batch)
            for first in range(0, len(part), size):
                feed = part.feed(first, size)
                try:
                    answers = session.run(outputs, feed) if outputs else []
                except Exception as error:  # the runtime's own exceptions share no public base
                    raise StageError(f"ONNX Runtime fails on a calibration batch: {one_line(error)}") from error
                yield feed | dict(zip(outputs, answers, strict=True)), min(start + first + size, self.samples)
