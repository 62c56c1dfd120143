"""Frames of video files, cameras and network streams, and drawn frames as a video, by OpenCV (the extra `video`)."""

import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps

from gauntlet.core.arrays import Array
from gauntlet.core.errors import ConfigError, install_command, without_password

if TYPE_CHECKING:
    import cv2

SUFFIXES = (".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi", ".mpg", ".mpeg", ".ts", ".wmv", ".mjpeg", ".mjpg")
CAMERA, ADDRESS = "camera:", "://"
Pixels = npt.NDArray[np.uint8]

USUAL_FPS = 25.0
"""Of a source that does not name its frames per second."""
TRUNCATED_S, TRUNCATED_FRAMES = 0.5, 2
"""A file is truncated where more than this is missing of both; containers may announce a few frames too many."""
PAPER = 245
"""Level of what fills a drawn frame that is smaller than the first one."""
CLOSING_S = 2.0
"""How long to wait for a thread that is still reading."""


@dataclass(frozen=True)
class Frame:
    """One frame of a video."""

    index: int
    """In the source, from 0; a dropped frame has its number, too."""
    seconds: float
    """Since the first frame: by the file's timestamps, or, of a live source, when it came."""
    pixels: Array
    """Shape (height, width, channels), uint8: grayscale for 1 channel, RGB for 3."""


class VideoSource(Protocol):
    """Frames, once, in their order; `close` ends them and may be called at any time."""

    fps: float
    dropped: int

    def frames(self) -> Iterator[Frame]:
        """Yield the frames; `ConfigError` when the source has none, or ends before it should."""

    def close(self) -> None:
        """Release the file or the device."""


def is_video(name: str) -> bool:
    """Tell whether a name is that of a video file (by its suffix), a camera (`camera:0`) or a stream (`rtsp://...`)."""
    return name.startswith(CAMERA) or ADDRESS in name or Path(name).suffix.lower() in SUFFIXES


def open_video(name: str, channels: int, timeout_s: float) -> VideoSource:
    """Open a video file, a camera or a network stream; a stream of a known length is read as a file is.

    Args:
        name: a path, `camera:N`, or an address that FFmpeg can open (http, https, rtsp, rtmp, udp).
        channels: of the pixels: 1 for grayscale, 3 for RGB.
        timeout_s: after which a live source that sends nothing is given up.

    Raises:
        ConfigError: when it cannot be opened, or OpenCV is not installed.
    """
    cv2, label = opencv(), without_password(name)
    if name.startswith(CAMERA):
        number = name.removeprefix(CAMERA)
        if not number.isdecimal():
            raise ConfigError(f"{name}: expected camera:N, with N the number of the camera, from 0")
        capture = cv2.VideoCapture(int(number))
        fix = "connect it, see that no other program uses it, and that you may read its device (/dev/video*)"
    elif ADDRESS in name:
        limits = [cv2.CAP_PROP_OPEN_TIMEOUT_MSEC, cv2.CAP_PROP_READ_TIMEOUT_MSEC]
        limit_ms = max(1, round(1000 * timeout_s))
        capture = cv2.VideoCapture(name, cv2.CAP_FFMPEG, [value for limit in limits for value in (limit, limit_ms)])
        fix = f"check the address, and that it sends video within {timeout_s:g} s (--timeout)"
    else:
        if not Path(name).exists():
            raise ConfigError(f"{name}: no such file or folder")
        # An absolute path is never taken for a protocol of FFmpeg's (`concat:...`).
        capture = cv2.VideoCapture(str(Path(name).absolute()), cv2.CAP_FFMPEG)
        fix = "copy or convert it again; FFmpeg cannot read it"
    if not capture.isOpened():
        raise ConfigError(f"{label}: not a readable video. Fix: {fix}")
    length = capture.get(cv2.CAP_PROP_FRAME_COUNT)
    if name.startswith(CAMERA) or (ADDRESS in name and length <= 0):
        return LiveVideo(capture, label, channels, timeout_s, may_end=ADDRESS in name)
    return VideoFile(capture, label, channels)


class VideoFile:
    """Every frame of a file; its end is an error where the file announces more."""

    def __init__(self, capture: "cv2.VideoCapture", name: str, channels: int) -> None:
        self._capture, self._name, self._channels = capture, name, channels
        self.fps, self.dropped = _fps(capture), 0

    def frames(self) -> Iterator[Frame]:
        """Yield the frames."""
        cv2, index, seconds = opencv(), 0, 0.0
        while True:
            read, image = self._capture.read()
            if not read:
                break
            seconds = max(seconds, self._capture.get(cv2.CAP_PROP_POS_MSEC) / 1000)
            yield Frame(index, seconds, _pixels(image, self._channels))
            index += 1
        if not index:
            raise ConfigError(f"{self._name}: no frame can be read; the file is empty or damaged. Fix: copy it again")
        announced = self._capture.get(cv2.CAP_PROP_FRAME_COUNT)
        missing_s = announced / self.fps - seconds - 1 / self.fps
        if announced - index > TRUNCATED_FRAMES and missing_s > TRUNCATED_S:
            raise ConfigError(
                f"{self._name}: ends after {index} of about {announced:.0f} frames ({seconds:.2f} of "
                f"{announced / self.fps:.2f} s): truncated or damaged. Fix: copy it again"
            )

    def close(self) -> None:
        """Release the file."""
        self._capture.release()


class LiveVideo:
    """The newest frame of a source that does not wait, read in a thread; those that nobody took in time are dropped."""

    def __init__(
        self, capture: "cv2.VideoCapture", name: str, channels: int, timeout_s: float, *, may_end: bool
    ) -> None:
        self._capture, self._name, self._channels, self._timeout_s = capture, name, channels, timeout_s
        self._may_end = may_end
        self.fps, self.dropped, self.received = _fps(capture), 0, 0
        self._newest: Frame | None = None
        self._ended = self._silent = self._stopped = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._read, name="video", daemon=True)

    def frames(self) -> Iterator[Frame]:
        """Yield the newest frame each time, until the source ends; a camera that ends was disconnected."""
        self._thread.start()
        while True:
            with self._changed:
                came = self._changed.wait_for(lambda: self._newest is not None or self._ended, self._timeout_s)
                frame, self._newest = self._newest, None
            if frame is not None:
                yield Frame(frame.index, frame.seconds, _pixels(frame.pixels, self._channels))
            elif not came or self._silent:
                fix = "check the source, or wait longer (--timeout)"
                raise ConfigError(f"{self._name}: no frame for {self._timeout_s:g} s. Fix: {fix}")
            elif not self._may_end or not self.received:
                raise ConfigError(f"{self._name}: it broke off after {self.received} frames. Fix: connect it again")
            else:
                return

    def close(self) -> None:
        """Stop reading; the thread releases the device, because it may still be in a read."""
        self._stopped = True
        if self._thread.is_alive():
            self._thread.join(CLOSING_S)

    def _read(self) -> None:
        first = 0.0
        try:
            while not self._stopped:
                start = time.monotonic()
                read, image = self._capture.read()
                now = time.monotonic()
                if not read:
                    self._silent = now - start >= self._timeout_s
                    break
                first = first or now
                with self._changed:
                    self.dropped += self._newest is not None
                    self._newest = Frame(self.received, now - first, np.asarray(image))
                    self.received += 1
                    self._changed.notify_all()
        finally:
            self._capture.release()
            with self._changed:
                self._ended = True
                self._changed.notify_all()


class VideoWriter:
    """Writes images as an MPEG-4 video, each as long as it was to be seen; the first one decides the size.

    Raises:
        ConfigError: when the file cannot be written.
    """

    def __init__(self, path: Path, fps: float) -> None:
        self._path, self._fps, self._written = path, fps, 0
        self._last: Pixels | None = None
        self._writer: cv2.VideoWriter | None = None

    def add(self, image: Array, seconds: float) -> None:
        """Add an image, shape (height, width, 3), RGB, that is seen from this time on."""
        if self._last is not None:
            self._show(round(seconds * self._fps) - self._written)
        self._last = self._fitted(image)

    def close(self) -> None:
        """Write the last image, and finish the file."""
        if self._last is not None:
            self._show(1)
        if self._writer is not None:
            self._writer.release()
        self._last = self._writer = None

    def _show(self, times: int) -> None:
        assert self._last is not None
        if self._writer is None:
            self._writer = self._opened(self._last)
        for _ in range(max(1, times)):  # a file loses no frame, however close to the next one
            self._writer.write(self._last)
            self._written += 1

    def _opened(self, image: Pixels) -> "cv2.VideoWriter":
        module = opencv()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        code, size = module.VideoWriter.fourcc(*"mp4v"), (image.shape[1], image.shape[0])
        writer: cv2.VideoWriter = module.VideoWriter(
            str(self._path.absolute()), module.CAP_FFMPEG, code, self._fps, size
        )
        if not writer.isOpened():
            raise ConfigError(f"{self._path}: the video cannot be written. Fix: choose another file, or a folder")
        return writer

    def _fitted(self, image: Array) -> Pixels:
        """Return the image as OpenCV wants it, reduced if it is larger than the first one, and filled to its size."""
        height, width = image.shape[:2] if self._last is None else self._last.shape[:2]
        canvas = np.full((height + height % 2, width + width % 2, 3), PAPER, np.uint8)  # the codec takes even sizes
        if image.shape[0] > canvas.shape[0] or image.shape[1] > canvas.shape[1]:
            image = np.asarray(ImageOps.contain(Image.fromarray(image), (canvas.shape[1], canvas.shape[0])))
        canvas[: image.shape[0], : image.shape[1]] = image[:, :, ::-1]
        return canvas


def opencv() -> ModuleType:
    """Return OpenCV's module, silent: what goes wrong is said in our words; `ConfigError` where it is missing."""
    os.environ.setdefault("OPENCV_LOG_LEVEL", "SILENT")
    os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "-8")
    try:
        import cv2
    except ModuleNotFoundError as error:
        raise ConfigError(f"videos need OpenCV, which is missing. Fix: {install_command('video')}") from error
    return cv2


def _fps(capture: "cv2.VideoCapture") -> float:
    named = float(capture.get(opencv().CAP_PROP_FPS))
    return named if 0 < named < 1000 else USUAL_FPS


def _pixels(image: Array, channels: int) -> Array:
    """Return OpenCV's image, BGR, as Pillow would decode it for this number of channels."""
    color = np.ascontiguousarray(image[:, :, ::-1])
    return color if channels != 1 else np.asarray(Image.fromarray(color).convert("L"))[:, :, None]
