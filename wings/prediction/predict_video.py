"""`gauntlet predict BUNDLE video.mp4|camera:0|ADDRESS`: the predictions of a video, frame by frame."""

import argparse
import json
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from PIL import Image
from rich.console import Console

import gauntlet
from flows.cli.shared import plain
from gauntlet.bundle.predictor import Predictor
from gauntlet.core.errors import ConfigError
from wings.prediction.library.video_files import VideoWriter
from wings.prediction.library.video_prediction import SILENCE_S, PredictedFrame, VideoPredictions, predict_frames

INTERRUPTED = 130


def predict_video(options: argparse.Namespace) -> int:
    """Print the prediction of each frame as it is made, and at the end, or after Ctrl-C, the summary."""
    [source] = options.inputs
    drawn = Path(options.draw) if options.draw else None
    if drawn is not None and Path(source).exists() and drawn.resolve() == Path(source).resolve():
        raise ConfigError(f"--draw {drawn}: it is the video itself; choose another file")
    predictor = gauntlet.load(options.bundle, threads=options.threads, provider=options.provider)
    video = predict_frames(predictor, source, frames=options.frames, timeout_s=options.timeout or SILENCE_S)
    show = _print_json if options.json else _line_printer()
    with ExitStack() as files:
        draw = _drawing(predictor, video, drawn, files) if drawn else None
        try:
            for frame in video:
                if draw:
                    video.timed("draw", partial(draw, frame))
                show(frame)
        except KeyboardInterrupt:
            return INTERRUPTED
        finally:
            _print_summary(video, as_json=options.json)
    return 0


def _drawing(
    predictor: Predictor, video: VideoPredictions, target: Path, files: ExitStack
) -> Callable[[PredictedFrame], None]:
    """Return what draws a frame: into a video, where the target is an `.mp4` file, or as a PNG in a folder."""
    if target.suffix.lower() == ".mp4":
        writer = VideoWriter(target, video.source.fps)
        files.callback(writer.close)
        return lambda frame: writer.add(predictor.problem.draw(frame.pixels, frame.prediction), frame.seconds)
    target.mkdir(parents=True, exist_ok=True)

    def save(frame: PredictedFrame) -> None:
        Image.fromarray(predictor.problem.draw(frame.pixels, frame.prediction)).save(target / f"{frame.index:06}.png")

    return save


def _print_json(frame: PredictedFrame) -> None:
    line = {"frame": frame.index, "time_s": round(frame.seconds, 6), "latency_ms": round(frame.latency_ms, 3)}
    print(json.dumps(line | {"prediction": frame.prediction.model_dump(mode="json")}), flush=True)  # noqa: T201


def _line_printer() -> Callable[[PredictedFrame], None]:
    console = Console(soft_wrap=True, highlight=False)
    return lambda frame: console.print(f"{frame.index:6}  {frame.seconds:9.3f} s  {plain(frame.prediction.text())}")


def _print_summary(video: VideoPredictions, *, as_json: bool) -> None:
    summary = video.summary()
    print(json.dumps({"summary": summary.model_dump(mode="json")}) if as_json else summary.text(), flush=True)  # noqa: T201
