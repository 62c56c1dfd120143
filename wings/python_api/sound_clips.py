"""A folder of `.wav` files as waveforms: one array, and the folders' names as labels."""

import warnings
from collections import Counter
from pathlib import Path, PurePath

import numpy as np
import numpy.typing as npt

from gauntlet.core.arrays import Array
from gauntlet.core.errors import ConfigError, StageError, one_line
from gauntlet.datasets.directory_index import index_images
from gauntlet.onnx_model.graph import Shape

SUFFIX = ".wav"
OTHER_SOUNDS = {".flac", ".mp3", ".ogg", ".opus", ".m4a", ".aac", ".aiff"}
TRUNCATED = r"Reached EOF prematurely.* expected \d{1,9} bytes"
"""Of a file that a program wrote to a pipe, the header states gigabytes."""
WAY_OUT = "Fix: give what the model takes with --data FILE.py:FUNCTION"

Waveform = npt.NDArray[np.float32]


def has_clips(path: Path) -> bool:
    """Return whether there are `.wav` files in a folder, or in the folders of its classes."""
    return any(file.suffix.lower() == SUFFIX for level in ("*", "*/*") for file in path.glob(level))


def left_out(path: Path) -> str:
    """Return how many files of a folder are not read, by suffix; empty if all are."""
    files = (PurePath(file) for _, _, file in index_images(path).files)
    others = Counter(file.suffix.lower() or file.name for file in files if file.suffix.lower() != SUFFIX)
    listed = ", ".join(f"{count} {suffix}" for suffix, count in others.most_common())
    return f"{listed} left out: only {SUFFIX} is read. Fix: convert sounds to {SUFFIX}" if others else ""


def require_known_sounds(path: Path) -> None:
    """Raise `ConfigError` for a folder whose only files are sounds of other kinds than `.wav`."""
    suffixes = {PurePath(file).suffix.lower() for _, _, file in index_images(path).files}
    if suffixes and suffixes <= OTHER_SOUNDS:
        raise ConfigError(f"--data {path}: {left_out(path)}")


def read_clips(path: Path, shape: Shape | None = None) -> tuple[Array, ...]:
    """Return the clips of a folder, float32 from -1 to 1, and where it has folders, their names as labels.

    The channels of a clip are averaged. Clips that are shorter than the input, or than the longest one where the input
    leaves its length open, end in zeros.

    Args:
        path: the folder.
        shape: of the model's input, (n, samples), (n, 1, samples) or (n, samples, 1), where it is known.

    Returns:
        Clips of that shape, by default (n, samples); and labels of shape (n,).

    Raises:
        StageError: when a file is unreadable or too long, the sample rates differ, or the model takes no waveforms.
    """
    files = [file for _, _, file in index_images(path).files if file.lower().endswith(SUFFIX)]
    clips = [_read(path / file) for file in files]
    rates = {rate: file for (rate, _), file in zip(clips, files, strict=True)}
    if len(rates) > 1:
        listed = ", ".join(f"{file}: {rate} Hz" for rate, file in rates.items())
        raise StageError(f"clips of different sample rates ({listed}). Fix: resample them to what the model expects")
    axis, length = _time_axis(shape)
    longest = max(files, key=lambda file: len(clips[files.index(file)][1]))
    wanted, most = length, len(clips[files.index(longest)][1])
    if wanted is not None and most > wanted:
        raise StageError(f"{longest} has {most} samples, and the model takes {wanted}. Fix: cut it into parts")
    waves = np.zeros((len(clips), wanted or most), np.float32)
    for row, (_, clip) in zip(waves, clips, strict=True):
        row[: len(clip)] = clip
    folders = [PurePath(file).parts[0] for file in files if len(PurePath(file).parts) > 1]
    labels = (np.array(folders),) if len(folders) == len(files) else ()
    return (waves if axis is None else np.expand_dims(waves, axis), *labels)


def _time_axis(shape: Shape | None) -> tuple[int | None, int | None]:
    """Return the axis of the only channel, or None without one, and the length of a clip where it is fixed."""
    if shape is None or len(shape) == 2:
        axis, rest = None, (shape or ())[1:]
    elif len(shape) == 3 and 1 in shape[1:]:
        axis = 1 if shape[1] == 1 else 2
        rest = shape[2:] if axis == 1 else shape[1:2]
    else:
        raise StageError(f"the model's input {list(shape)} takes no waveforms. {WAY_OUT}")
    return axis, next((size for size in rest if isinstance(size, int)), None)


def _read(file: Path) -> tuple[int, Waveform]:
    """Return the sample rate in Hz, and the mean of the channels, from -1 to 1."""
    from scipy.io import wavfile

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", wavfile.WavFileWarning)  # of chunks with titles and the like
            warnings.filterwarnings("error", TRUNCATED, wavfile.WavFileWarning)
            rate, samples = wavfile.read(file)
    except Exception as error:  # SciPy's reader raises many types
        raise StageError(f"{file}: not a readable .wav file ({one_line(error) or type(error).__name__})") from error
    if not samples.size:
        raise StageError(f"{file}: no samples in it")
    if samples.dtype.kind == "u":
        values = (samples.astype(np.float32) - 128) / 128
    elif samples.dtype.kind == "i":
        values = samples.astype(np.float32) / -float(np.iinfo(samples.dtype).min)
    else:
        values = samples.astype(np.float32)
    return int(rate), values if values.ndim == 1 else values.mean(axis=1)
