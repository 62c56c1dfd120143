"""The calibration samples as calls of the model, read one chunk at a time."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gauntlet.core.arrays import NamedArrays
from gauntlet.datasets.splits import Split
from gauntlet.runtime.batched_inference import batched_inference

BATCH = 8


class OneChunk:
    """A `CalibrationDataReader` of a single call, so that ONNX Runtime keeps no more than its activations."""

    def __init__(self, feed: NamedArrays) -> None:
        self.feeds = [feed]

    def get_next(self) -> NamedArrays | None:
        """Return the call's inputs once."""
        return self.feeds.pop() if self.feeds else None


@dataclass(frozen=True)
class CalibrationDataReader:
    """The first samples of a split, in their order, as calls of a session."""

    session: Any
    split: Split
    samples: int
    batch: int

    @classmethod
    def of(cls, session: Any, split: Split, wanted: int) -> "CalibrationDataReader":
        """Return the first `wanted` samples, or all that there are, in calls as small as the model allows.

        A model with a fixed batch gets only as many as fill its calls: the copies that would fill up the last one would
        be counted as samples. Where there are too few for one call, there is no other way.
        """
        samples, batch = min(wanted, len(split)), batched_inference(session, split.take(slice(0, 1))).batch(1)
        return cls(session, split, samples - samples % batch if samples >= batch else samples, batch)

    def in_chunks(self, most: int) -> "CalibrationDataReader":
        """Return the same samples, at most so many in a call, in at least four calls, where the model allows that."""
        wanted = max(1, min(BATCH, most, self.samples // 4))
        return CalibrationDataReader(self.session, self.split, self.samples, self._calls(0, 1).batch(wanted))

    def __iter__(self) -> Iterator[tuple[NamedArrays, int]]:
        """Yield the inputs of each call, and how many samples have been seen after it."""
        for start in range(0, self.samples, self.batch):
            end = min(start + self.batch, self.samples)
            yield self._calls(start, end).feed(0, self.batch), end

    def _calls(self, start: int, end: int) -> Any:
        return batched_inference(self.session, self.split.take(slice(start, end)))
