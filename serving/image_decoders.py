"""Decode the images of requests in processes, which end at the deadline.

A decoder is C code, which nothing ends in a thread: a JPEG of 70 kB may have a thousand scans, each over all pixels.
What the processes reply is not unpickled.
"""

import contextlib
import json
import multiprocessing
import resource
import signal
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from queue import SimpleQueue
from time import perf_counter

import numpy as np

from gauntlet.core.arrays import Array
from gauntlet.core.errors import StageError
from gauntlet.images.decoding import decode_image
from serving.errors import InvalidRequest, Overloaded

PROCESSES = 2
MEMORY_BYTES = 1 << 30
"""Of a process, for what it writes to."""
CONTEXT = multiprocessing.get_context("forkserver")


class ImageDecoder:
    """A process, which is replaced when it has ended; one thread at a time uses it."""

    def __init__(self) -> None:
        self._process: ForkServerProcess | None = None
        self._connection: Connection

    def start(self) -> None:
        """Start the process and wait until it is ready, unless it runs."""
        if self._process is not None and self._process.is_alive():
            return
        CONTEXT.set_forkserver_preload(["gauntlet.images.decoding"])
        self._connection, end = CONTEXT.Pipe()
        self._process = CONTEXT.Process(target=_reply, args=(end,), daemon=True)
        self._process.start()
        end.close()
        self._connection.recv_bytes()

    def decode(self, files: list[bytes], channels: int, max_pixels: int, seconds: float) -> list[Array]:
        """Return the pixels of image files; `max_pixels` is for all of them together.

        Raises:
            InvalidRequest: when one is no image that `decode_image` takes.
            Overloaded: when it takes longer.
        """
        self.start()
        try:
            self._connection.send((files, channels, max_pixels, seconds))
            reply = json.loads(self._connection.recv_bytes())
            if "error" in reply:
                raise InvalidRequest(str(reply["error"]))
            return [np.frombuffer(self._connection.recv_bytes(), np.uint8).reshape(shape) for shape in reply["shapes"]]
        except (EOFError, OSError):
            code = self._ended()
        self.start()
        if code == -signal.SIGALRM:
            raise Overloaded(f"the images were not decoded within {seconds:.2g} s", 1)
        raise InvalidRequest("the images cannot be decoded: they end their decoder")

    def _ended(self) -> int | None:
        """Return the exit code of the process, which has closed its connection."""
        if self._process is None:
            return None
        self._process.join(timeout=1)
        self._process.kill()
        self._process.join()
        return self._process.exitcode


class ImageDecoders:
    """As many processes as decode at once."""

    def __init__(self, count: int = PROCESSES) -> None:
        self._idle: SimpleQueue[ImageDecoder] = SimpleQueue()
        for _ in range(count):
            self._idle.put(ImageDecoder())

    def start(self) -> None:
        """Start the processes that are idle and do not run."""
        for _ in range(self._idle.qsize()):
            decoder = self._idle.get()
            try:
                decoder.start()
            finally:
                self._idle.put(decoder)

    def decode(self, files: list[bytes], channels: int, max_pixels: int, deadline: float) -> list[Array]:
        """See `ImageDecoder.decode`; `deadline` is a time of `perf_counter`. Wait for a process that is idle."""
        decoder = self._idle.get()
        try:
            if (left := deadline - perf_counter()) <= 0:
                raise Overloaded("other images were decoded until the deadline", 1)
            return decoder.decode(files, channels, max_pixels, left)
        finally:
            self._idle.put(decoder)


decoders = ImageDecoders()
"""Of this server; they start with the first model that takes images."""


def _reply(connection: Connection) -> None:
    """Decode what is asked for until the server ends; the alarm, which nothing handles, ends this process."""
    with contextlib.suppress(ValueError, OSError):  # a lower limit is in force
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal; the server finishes what it has admitted
    connection.send_bytes(b"ready")
    while True:
        try:
            files, channels, max_pixels, seconds = connection.recv()
        except EOFError:
            return
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            images = _decode(files, channels, max_pixels)
        except StageError as error:
            signal.setitimer(signal.ITIMER_REAL, 0)
            connection.send_bytes(json.dumps({"error": str(error)}).encode())
            continue
        signal.setitimer(signal.ITIMER_REAL, 0)
        connection.send_bytes(json.dumps({"shapes": [image.shape for image in images]}).encode())
        for image in images:
            connection.send_bytes(image.reshape(-1).data)


def _decode(files: list[bytes], channels: int, max_pixels: int) -> list[Array]:
    images: list[Array] = []
    for number, content in enumerate(files):
        try:
            images.append(decode_image(content, channels, max_pixels))
        except StageError as error:
            which = f"image {number}: " if len(files) > 1 else ""
            raise StageError(f"{which}{error}{' for the rest of the request' if number else ''}") from error
        max_pixels -= images[-1].shape[0] * images[-1].shape[1]
    return images
