"""`gauntlet predict`: the predictions of a bundle's model for images, arrays, a table or a video."""

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from itertools import chain, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from PIL import Image
from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import gauntlet
from flows.cli.shared import Output, plain
from gauntlet.bundle.predictor import Predictor, pixels_of
from gauntlet.core.arrays import NamedArrays, read_arrays, write_arrays
from gauntlet.core.artifact import Store
from gauntlet.core.errors import ConfigError, StageError
from gauntlet.core.frozen import Frozen
from gauntlet.core.kinds import required
from gauntlet.datasets.splits import NPZ_ERRORS
from gauntlet.images.decoding import SUFFIXES
from gauntlet.problems.prediction import Prediction
from gauntlet.reporting.text_format import counted
from wings.prediction.library.video_files import VideoWriter, is_video
from wings.prediction.library.video_prediction import SILENCE_S, PredictedFrame, VideoPredictions, predict_frames

STDIN = "-"
ROWS_AT_ONCE = 20
MAX_NAMES = 20
SAMPLES = (".npz", ".npy", ".csv", ".tsv", ".data", ".parquet", ".json", ".jsonl")
"""Suffixes of files with one sample a row."""

Input = Path | bytes
Result = tuple[str, Prediction | StageError]


def predict(options: argparse.Namespace) -> int:
    """Print a prediction for each input; return 1 where some images could not be read."""
    if videos := [name for name in options.inputs if is_video(name)]:
        if len(options.inputs) > 1:
            raise ConfigError(f"{videos[0]}: a video is predicted alone; give no other inputs")
        if options.out:
            raise ConfigError("--out: it holds the outputs for an .npz file; for a video use --json")
        return predict_video(options)
    for option in ("frames", "timeout"):
        if getattr(options, option) is not None:
            raise ConfigError(f"--{option}: it is for a video, a camera or a stream; remove it")
    arrays = [name for name in options.inputs if name.lower().removesuffix(".gz").endswith(SAMPLES)]
    if arrays and len(options.inputs) > 1:
        raise ConfigError(f"{arrays[0]}: a file of arrays is predicted alone; give no other inputs")
    if arrays and options.draw:
        raise ConfigError("--draw: arrays are not images; remove it")
    if options.out and not arrays:
        raise ConfigError("--out: it holds the outputs for a file of arrays; for images use --json")
    sources = [] if arrays else [_existing(name) for name in options.inputs]
    predictor = gauntlet.load(options.bundle, threads=options.threads, provider=options.provider)
    if arrays:
        return _predict_arrays(predictor, Path(arrays[0]), options)
    if not predictor.takes_images:
        names = ", ".join(f"{spec.name} {spec.dtype}{list(spec.shape)}" for spec in predictor.signature.inputs)
        raise ConfigError(
            f"{options.bundle}: the model takes {names}, not images. Fix: give them in an .npz file or a table"
        )
    return _predict_images(predictor, sources, options)


def _predict_images(predictor: Predictor, sources: list[Path | None], options: argparse.Namespace) -> int:
    left_out: list[Path] = []
    total = sum(1 if source is None else sum(1 for _ in image_files([source], [])) for source in sources)
    if not total:
        raise ConfigError(f"{', '.join(options.inputs)}: no images ({', '.join(SUFFIXES)})")
    drawings = Drawings(predictor, Path(options.draw), sources) if options.draw else None
    console, unreadable = Console(stderr=options.json), []

    def results(bar: Progress) -> Iterator[Result]:
        task = bar.add_task("images", total=total)
        for image, result in predictor.stream(image_files(sources, left_out)):
            name = str(image) if isinstance(image, Path) else STDIN
            if isinstance(result, StageError):
                unreadable.append(str(result) if isinstance(image, Path) else f"{STDIN}: {result}")
            elif drawings is not None:
                drawings.save(image, result)
            yield name, result
            bar.advance(task)

    visible = console.is_terminal and total > 1 and not (options.json and sys.stdout.isatty())
    with Progress(console=console, transient=True, disable=not visible) as bar:
        if options.json:
            _print_json(results(bar), "image")
        else:
            _print_table(console, results(bar), "image")
    errors = Console(stderr=True, soft_wrap=True, highlight=False)
    if left_out:
        why = "not named as images, or folders that are links or unreadable"
        errors.print(f"{counted(len(left_out), 'file')} left out, {why}: {_names(map(str, left_out))}")
    if unreadable:
        errors.print(f"[bold red]{counted(len(unreadable), 'image')} of {total} could not be read:[/]")
        for line in unreadable:
            errors.print(f"  {plain(line)}")
    return 1 if unreadable else 0


def _predict_arrays(predictor: Predictor, path: Path, options: argparse.Namespace) -> int:
    inputs = _samples(predictor, path)
    try:
        outputs = predictor.run(_wanted(predictor, inputs, path))
    except StageError as error:
        raise ConfigError(f"{path}: {error}") from error
    if options.out:
        write_arrays(options.out, outputs)
    named = ((str(number), prediction) for number, prediction in enumerate(predictor.decode(outputs)))
    if options.json:
        _print_json(named, "sample")
    else:
        _print_table(Output(), named, "sample")
    return 0


def _samples(predictor: Predictor, path: Path) -> NamedArrays:
    """Return the arrays of an `.npz` file, or those that a run would read from another one."""
    try:
        if path.suffix == ".npz":
            return read_arrays(path)
        as_arrays, model = required("samples", "other_files", str(path)), str(predictor.bundle.model)
        with TemporaryDirectory() as folder:
            store, columns = Store(Path(folder)), predictor.signature.columns
            return read_arrays(Path(as_arrays(str(_existing(str(path))), model, store, columns=columns)))
    except ConfigError as error:
        raise ConfigError(str(error).removeprefix("--data ").removeprefix("data: ")) from error
    except NPZ_ERRORS as error:  # TypeError: one array, without a name
        fix = "write it again, with numpy.savez and arrays of numbers or texts"
        raise ConfigError(f"{path}: not a readable .npz file: {error}. Fix: {fix}") from error


def _wanted(predictor: Predictor, inputs: NamedArrays, path: Path) -> NamedArrays:
    names = [spec.name for spec in predictor.signature.inputs]
    missing = [name for name in names if name not in inputs]
    if missing:
        raise ConfigError(f"{path}: no array for the input {missing[0]!r}; it has {sorted(inputs)}, wanted: {names}")
    return {name: inputs[name] for name in names}


def image_files(sources: Iterable[Path | None], left_out: list[Path]) -> Iterator[Input]:
    """Yield the images: files as named, those in folders by their suffix, and for None the bytes of standard input.

    Other files in folders, unless they are hidden, and folders that are links or unreadable are added to `left_out`.
    """
    for source in sources:
        if source is None:
            yield sys.stdin.buffer.read()
        elif source.is_dir():
            for folder, folders, names in os.walk(source, onerror=lambda error: left_out.append(Path(error.filename))):
                folders[:] = sorted(name for name in folders if not name.startswith("."))
                left_out.extend(link for link in (Path(folder, name) for name in folders) if link.is_symlink())
                for path in (Path(folder, name) for name in sorted(names) if not name.startswith(".")):
                    if path.suffix.lower() in SUFFIXES:
                        yield path
                    else:
                        left_out.append(path)
        else:
            yield source


class Drawings:
    """Writes images with their predictions as PNG, under their paths from the folder that all inputs have in common.

    Raises:
        ConfigError: when the drawings would be among the inputs.
    """

    def __init__(self, predictor: Predictor, folder: Path, sources: list[Path | None]) -> None:
        self.predictor, self.folder = predictor, folder
        paths = [source.resolve() for source in sources if source is not None]
        if any(path.is_dir() and folder.resolve().is_relative_to(path) for path in paths):
            raise ConfigError(f"--draw {folder}: it is inside a folder of inputs; choose another one")
        common = Path(os.path.commonpath(paths)) if paths else Path()
        self.root = common if common.is_dir() else common.parent

    def save(self, image: Input, prediction: Any) -> None:
        """Draw one prediction; `a/b.jpg` becomes `a/b.jpg.png`."""
        how = self.predictor.signature.preprocessing
        pixels = pixels_of(image, len(how.mean) if how else 3)
        name = image.resolve().relative_to(self.root) if isinstance(image, Path) else Path("stdin")
        target = self.folder / name.with_name(f"{name.name}.png")
        target.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(self.predictor.problem.draw(pixels, prediction)).save(target)


def _existing(name: str) -> Path | None:
    if name == STDIN:
        return None
    if not Path(name).exists():
        raise ConfigError(f"{name}: no such file or folder")
    return Path(name)


def _print_json(results: Iterable[Result], kind: str) -> None:
    """Print one JSON object a line, and each at once."""
    for name, value in results:
        rest = {"error": str(value)} if isinstance(value, StageError) else {"prediction": _values(value)}
        print(json.dumps({kind: name, **rest}), flush=True)  # noqa: T201


def _values(value: Frozen) -> Any:
    """Return a value for JSON, which has no NaN: it is a text there."""
    return json.loads(value.model_dump_json())


def _print_table(console: Console, results: Iterable[Result], kind: str) -> None:
    """Print a table a few rows at a time, so that a folder of any size can be shown; widths follow the first rows."""
    remaining, width = iter(results), 0
    while rows := list(islice(remaining, ROWS_AT_ONCE)):
        header = not width
        width = width or min(max(len(kind), *(len(name) for name, _ in rows)), console.width // 2)
        table = Table(box=box.SIMPLE_HEAD, show_header=header, show_edge=False, padding=(0, 1), expand=True)
        table.add_column(kind, width=width, overflow="fold")
        table.add_column("prediction", ratio=1, overflow="fold")
        for name, result in rows:
            text = "[bold red]could not be read[/]" if isinstance(result, StageError) else plain(result.text())
            table.add_row(plain(name), text)
        console.print(table)


def _names(names: Iterable[str]) -> str:
    first = list(islice(names, MAX_NAMES + 1))
    return ", ".join(chain(first[:MAX_NAMES], ["..."] * (len(first) > MAX_NAMES)))


INTERRUPTED = 130


def predict_video(options: argparse.Namespace) -> int:
    """Print the prediction of each frame as it is made, and at the end, or after Ctrl-C, the summary."""
    [source] = options.inputs
    drawn = Path(options.draw) if options.draw else None
    if drawn is not None and Path(source).exists() and drawn.resolve() == Path(source).resolve():
        raise ConfigError(f"--draw {drawn}: it is the video itself; choose another file")
    predictor = gauntlet.load(options.bundle, threads=options.threads, provider=options.provider)
    video = predict_frames(predictor, source, frames=options.frames, timeout_s=options.timeout or SILENCE_S)
    show = _print_frame if options.json else _line_printer()
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


def _print_frame(frame: PredictedFrame) -> None:
    line = {"frame": frame.index, "time_s": round(frame.seconds, 6), "latency_ms": round(frame.latency_ms, 3)}
    print(json.dumps(line | {"prediction": _values(frame.prediction)}), flush=True)  # noqa: T201


def _line_printer() -> Callable[[PredictedFrame], None]:
    console = Console(soft_wrap=True, highlight=False)
    return lambda frame: console.print(f"{frame.index:6}  {frame.seconds:9.3f} s  {plain(frame.prediction.text())}")


def _print_summary(video: VideoPredictions, *, as_json: bool) -> None:
    summary = video.summary()
    print(json.dumps({"summary": _values(summary)}) if as_json else summary.text(), flush=True)  # noqa: T201
