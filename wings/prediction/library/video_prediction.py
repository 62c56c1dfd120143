"""Predict a video frame by frame."""

import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TypeVar

import numpy as np
from pydantic import Field

from gauntlet.bundle.predictor import Predictor
from gauntlet.core.arrays import Array
from gauntlet.core.frozen import Frozen, Number
from gauntlet.problems.prediction import Prediction
from wings.prediction.library.video_files import Frame, VideoSource, open_video

Result = TypeVar("Result")
SILENCE_S = 10.0
"""After which a live source that sends nothing is given up."""


@dataclass(frozen=True)
class PredictedFrame(Frame):
    """A frame with its prediction."""

    prediction: Prediction
    latency_ms: float
    """From the decoded frame to its prediction: preprocessing, model, decoding of the outputs."""


class VideoSummary(Frozen):
    """What a video came to."""

    frames: int = Field(description="that were predicted")
    dropped: int = Field(description="of a live source, because a newer one had come; 0 for a file")
    seconds: Number = Field(description="from the first read to the last prediction that was taken")
    frames_per_second: Number = Field(
        description="frames / seconds, with reading and whatever is done with predictions"
    )
    latency_p50_ms: Number | None = Field(description="median; None without a frame")
    latency_p95_ms: Number | None
    stages_p95_ms: dict[str, Number] = Field(
        description="decode (of a live source, with the wait for it), preprocess, infer, postprocess, draw"
    )

    def text(self) -> str:
        """Return the summary in one line."""
        rate = f"{self.frames} frames in {self.seconds:.2f} s, {self.frames_per_second:.1f} frames per second"
        latency = (
            f"latency p50 {self.latency_p50_ms:.2f} ms, p95 {self.latency_p95_ms:.2f} ms"
            if self.frames
            else "no latency"
        )
        stages = ", ".join(f"{name} {ms:.2f}" for name, ms in self.stages_p95_ms.items())
        return f"{rate}; {latency}; {self.dropped} dropped" + (f"\np95 of each stage in ms: {stages}" if stages else "")


class VideoPredictions:
    """The predictions of a video, to iterate over once; `summary` is known at any time.

    Every frame of a file is predicted. Of a camera or a live stream, which a thread reads, always the newest frame is,
    and those that came meanwhile are dropped. The source is closed when the iteration ends, however it ends.
    """

    def __init__(self, source: VideoSource, predictor: Predictor, frames: int | None = None) -> None:
        self.source, self._predictor, self._most = source, predictor, frames
        self._latencies_ms = array("d")
        self._stages_ms: dict[str, array[float]] = {}
        self._seconds = 0.0

    def __iter__(self) -> Iterator[PredictedFrame]:
        """Yield frames with their predictions; `ConfigError` where the source cannot be read to its end."""
        start = time.perf_counter()
        with closing(self.source):
            frames = islice(self.source.frames(), self._most)
            while (frame := self.timed("decode", lambda: next(frames, None))) is not None:
                began = time.perf_counter()
                prediction = self._predicted(frame.pixels)
                ended = time.perf_counter()
                self._latencies_ms.append(1000 * (ended - began))
                self._seconds = ended - start
                yield PredictedFrame(frame.index, frame.seconds, frame.pixels, prediction, self._latencies_ms[-1])

    def timed(self, stage: str, work: Callable[[], Result]) -> Result:
        """Return what some work returns; its time is one of the stage's in the summary."""
        start = time.perf_counter()
        result = work()
        if result is not None or stage != "decode":  # which ends without a frame
            self._stages_ms.setdefault(stage, array("d")).append(1000 * (time.perf_counter() - start))
        return result

    def _predicted(self, pixels: Array) -> Prediction:
        predictor = self._predictor
        inputs = self.timed("preprocess", lambda: predictor.inputs_of([pixels]))
        outputs = self.timed("infer", lambda: predictor.run(inputs, 1))
        return self.timed("postprocess", lambda: predictor.decode(outputs, [(pixels.shape[0], pixels.shape[1])]))[0]

    def summary(self) -> VideoSummary:
        """Return what has been predicted so far."""
        count = len(self._latencies_ms)
        p50, p95 = np.percentile(self._latencies_ms, [50, 95]).tolist() if count else (None, None)
        return VideoSummary(
            frames=count,
            dropped=self.source.dropped,
            seconds=self._seconds,
            frames_per_second=count / self._seconds if count else 0.0,
            latency_p50_ms=p50,
            latency_p95_ms=p95,
            stages_p95_ms={name: float(np.percentile(ms, 95)) for name, ms in self._stages_ms.items()},
        )


def predict_frames(
    predictor: Predictor, source: str | Path, *, frames: int | None = None, timeout_s: float = SILENCE_S
) -> VideoPredictions:
    """Return the predictions of a video file, a camera (`camera:0`) or a stream (`rtsp://...`), to iterate over.

    Args:
        predictor: of a model that takes images.
        source: every frame of a file is predicted; of a live source always the newest, the others are dropped.
        frames: to predict at most; by default all.
        timeout_s: after which a live source that sends nothing is given up.

    Raises:
        ConfigError: when it cannot be opened or the model takes no images; while iterating, when it breaks off.
    """
    channels = len(predictor.preprocessing().mean)
    opened = open_video(str(source), channels, timeout_s)
    predictor(np.zeros((64, 64, channels), np.uint8))  # the first call is slow, and a camera does not wait for it
    return VideoPredictions(opened, predictor, frames)
