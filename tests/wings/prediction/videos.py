"""Real videos: files that OpenCV writes, and a camera as many are, a server of JPEG images over HTTP (multipart)."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import cv2
import numpy as np
from sklearn.datasets import load_digits

FPS = 10.0
PATIENCE_S = 120
OPENING = 6
"""FFmpeg looks at a few images before it opens a stream."""


def gray(level: int, height: int = 48, width: int = 64) -> np.ndarray:
    return np.full((height, width, 3), level, np.uint8)


def write_video(path: Path, images: Sequence[np.ndarray], code: str = "MJPG") -> Path:
    """Write images, RGB of one size, as a video of ten frames a second; with FFV1 they are kept as they are."""
    size = (images[0].shape[1], images[0].shape[0]) if images else (64, 48)
    writer = cv2.VideoWriter(str(path), cv2.CAP_FFMPEG, cv2.VideoWriter.fourcc(*code), FPS, size)
    assert writer.isOpened()
    for image in images:
        writer.write(np.ascontiguousarray(image[:, :, ::-1]))
    writer.release()
    return path


def digits(count: int) -> list[np.ndarray]:
    """Return scikit-learn's first digits as RGB."""
    images = [np.round(image * 255 / 16).astype(np.uint8) for image in load_digits().images[:count]]
    return [image[:, :, None].repeat(3, axis=2) for image in images]


def cut(path: Path, share: float = 0.5) -> Path:
    """Write the first part of a file beside it."""
    target = path.with_name(f"cut-{path.name}")
    target.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    return target


class Camera:
    """A server that sends its images one by one, each when the test says so, and then ends the stream."""

    def __init__(self, images: Sequence[np.ndarray]) -> None:
        self.images, self._may_send = images, threading.Semaphore(0)
        camera = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                pass

            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "multipart/x-mixed-replace; boundary=frame")
                self.end_headers()
                for image in camera.images:
                    camera._may_send.acquire()
                    body = cv2.imencode(".jpg", image)[1].tobytes()
                    head = f"--frame\r\nContent-Type: image/jpeg\r\nContent-Length: {len(body)}\r\n\r\n"
                    self.wfile.write(head.encode() + body + b"\r\n")

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/stream"

    def send(self, images: int) -> None:
        self._may_send.release(images)


@contextmanager
def camera(images: Sequence[np.ndarray]) -> Iterator[Camera]:
    """Serve a camera on a free port of the loopback."""
    found = Camera(images)
    thread = threading.Thread(target=found.server.serve_forever, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        found.server.shutdown()
        found.server.socket.close()
        thread.join()


def until(ready: Callable[[], bool]) -> None:
    """Wait for a condition."""
    end = time.monotonic() + PATIENCE_S
    while not ready():
        assert time.monotonic() < end, f"not ready within {PATIENCE_S} s"
        time.sleep(0.01)
